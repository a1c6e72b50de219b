/* plugins/cuda/cublaslt_library.c - loads a file into a table of calls, or gives a reason. */
#include "cublaslt_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static hd_status cublaslt_library_find(struct cublaslt_library *library, void *handle,
                                       const char *name, void *out)
{
    void *symbol = dlsym(handle, name);
    memcpy(out, &symbol, sizeof symbol);
    if (symbol != NULL) {
        return HD_OK;
    }
    snprintf(library->reason, sizeof library->reason, "%s has no %s: it is not cuBLASLt %d",
             library->path, name, CUBLAS_VER_MAJOR);
    return HD_UNSUPPORTED;
}

static void cublaslt_library_note_path(struct cublaslt_library *library, void *handle)
{
    Dl_info where;
    void *symbol = dlsym(handle, "cublasLtGetVersion");
    if (symbol != NULL && dladdr(symbol, &where) != 0 && where.dli_fname != NULL) {
        snprintf(library->path, sizeof library->path, "%s", where.dli_fname);
    }
}

hd_status cublaslt_load(struct cublaslt_library *library, const char *path)
{
    memset(library, 0, sizeof *library);
    snprintf(library->path, sizeof library->path, "%s", path);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        snprintf(
            library->reason, sizeof library->reason,
            "cannot load cuBLASLt (%s): install it from CUDA %d, or name its file with the option "
            "cublaslt",
            dlerror(), CUBLAS_VER_MAJOR);
        return HD_UNSUPPORTED;
    }
    cublaslt_library_note_path(library, handle);
    hd_status status = HD_OK;
#define FIND(name)                                                              \
    if (status == HD_OK) {                                                      \
        status = cublaslt_library_find(library, handle, #name, &library->name); \
    }
    CUBLASLT_CALLS(FIND)
    if (status != HD_OK) {
        return status;
    }
    library->version = (unsigned)library->cublasLtGetVersion();
    if (library->version / 10000 != CUBLAS_VER_MAJOR) {
        snprintf(
            library->reason, sizeof library->reason,
            "%s is cuBLASLt %u.%u, but this plugin was built for %d: name another file with the "
            "option cublaslt",
            library->path, library->version / 10000, library->version / 100 % 100,
            CUBLAS_VER_MAJOR);
        return HD_UNSUPPORTED;
    }
    return HD_OK;
}

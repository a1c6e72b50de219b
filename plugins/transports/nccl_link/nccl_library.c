/* nccl_link/nccl_library.c - dlopen of NCCL, and why it may fail. */
#include "nccl_library.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

__attribute__((format(printf, 2, 3))) static hd_status nccl_library_refuse(
    struct nccl_library *library, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(library->reason, sizeof library->reason, format, arguments);
    va_end(arguments);
    return HD_UNSUPPORTED;
}

const char *nccl_version_text(int version, char text[16])
{
    snprintf(text, 16, "%d.%d.%d", version / 10000 % 100, version / 100 % 100, version % 100);
    return text;
}

/* POSIX lets a data pointer hold a function pointer; C requires the copy through memory. */
static bool nccl_link_find(void *handle, const char *name, void *out)
{
    void *symbol = dlsym(handle, name);

    memcpy(out, &symbol, sizeof symbol);
    return symbol != NULL;
}

static hd_status nccl_link_open_file(struct nccl_library *library, const char *path, void **handle)
{
    ncclResult_t (*get_version)(int *) = NULL;
    Dl_info where;

    *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (*handle == NULL) {
        return nccl_library_refuse(
            library, "cannot load NCCL (%s): install it, or name its file with the option library",
            dlerror());
    }
    snprintf(library->path, sizeof library->path, "%s", path);
    if (!nccl_link_find(*handle, "ncclGetVersion", &get_version) ||
        get_version(&library->version) != ncclSuccess) {
        return nccl_library_refuse(library, "%s is not NCCL: it has no ncclGetVersion", path);
    }
    void *symbol = dlsym(*handle, "ncclGetVersion");
    if (dladdr(symbol, &where) != 0 && where.dli_fname != NULL) {
        snprintf(library->path, sizeof library->path, "%s", where.dli_fname);
    }
    return HD_OK;
}

hd_status nccl_load(struct nccl_library *library, const char *path)
{
    void *handle = NULL;
    char version[16];

    memset(library, 0, sizeof *library);
    hd_status status = nccl_link_open_file(library, path, &handle);
    if (status != HD_OK) {
        return status;
    }
#define FIND(name)                                                                                \
    if (status == HD_OK && !nccl_link_find(handle, #name, &library->name)) {                      \
        status = nccl_library_refuse(library, "%s is NCCL %s and has no %s: install a newer one", \
                                     library->path, nccl_version_text(library->version, version), \
                                     #name);                                                      \
    }
    NCCL_CALLS(FIND)
#undef FIND
    nccl_link_find(handle, "ncclCommRevoke", &library->revoke);
    nccl_link_find(handle, "ncclPutSignal", &library->put_signal);
    nccl_link_find(handle, "ncclSignal", &library->signal);
    nccl_link_find(handle, "ncclWaitSignal", &library->wait_signal);
    return status;
}

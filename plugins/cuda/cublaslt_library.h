/*
 * plugins/cuda/cublaslt_library.h - how the GPU plugins reach cuBLASLt.
 *
 * As cuda_library.h: a plugin that is opened loads the library by name, after CUDA itself, into
 * a table of typed pointers.  In tests the file is a stand-in (tests/standin/cublaslt).
 */
#ifndef CUBLASLT_LIBRARY_H
#define CUBLASLT_LIBRARY_H

#include <heddle/plugin.h>

#include <cublasLt.h>

#define CUBLASLT_CALLS(call)                                                                   \
    call(cublasLtCreate) call(cublasLtDestroy) call(cublasLtGetStatusString)                   \
        call(cublasLtGetVersion) call(cublasLtMatmul) call(cublasLtMatmulAlgoGetHeuristic)     \
            call(cublasLtMatmulDescCreate) call(cublasLtMatmulDescDestroy)                     \
                call(cublasLtMatmulDescSetAttribute) call(cublasLtMatmulPreferenceCreate)      \
                    call(cublasLtMatmulPreferenceDestroy)                                      \
                        call(cublasLtMatmulPreferenceSetAttribute)                             \
                            call(cublasLtMatrixLayoutCreate) call(cublasLtMatrixLayoutDestroy) \
                                call(cublasLtMatrixLayoutSetAttribute)

enum { CUBLASLT_PATH_BYTES = 256, CUBLASLT_REASON_BYTES = 512 };

struct cublaslt_library {
    char path[CUBLASLT_PATH_BYTES];     /* of the file that was loaded, as ld.so found it */
    char reason[CUBLASLT_REASON_BYTES]; /* why it is not loaded, with the remedy */
    unsigned version;                   /* 130100 is 13.1.0 */
#define CUBLASLT_MEMBER(name) __typeof__(name) *name;
    CUBLASLT_CALLS(CUBLASLT_MEMBER)
#undef CUBLASLT_MEMBER
};

/* Leaves the function with the first error of cuBLASLt. */
#define CUBLASLT_TRY(step)                    \
    do {                                      \
        const cublasStatus_t tried = (step);  \
        if (tried != CUBLAS_STATUS_SUCCESS) { \
            return tried;                     \
        }                                     \
    } while (0)

/* The option of every such plugin: the path for cublaslt_load. */
#define CUBLASLT_OPTION                                                                   \
    {                                                                                     \
        .name = "cublaslt", .initial = "libcublasLt.so.13",                               \
        .help = "The cuBLASLt to load: a path, or a name that the dynamic linker knows.", \
        .type = HD_OPTION_TEXT                                                            \
    }

/* Fills `library`.  HD_UNSUPPORTED, with `reason` set: no such file, another major version than
   that of these headers, or a missing call.  Creates no handle. [setup] */
hd_status cublaslt_load(struct cublaslt_library *library, const char *path);

#endif /* CUBLASLT_LIBRARY_H */

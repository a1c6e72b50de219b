/*
 * tests/test_cuda_library.c - how a plugin finds CUDA, and each way in which it does not.
 *
 * A row starts a child, since a process reads the stand-in's settings once.
 */
#include "support/check.h"

#include "cuda_library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct row {
    const char *file;     /* under the build tree; with a '.' first: as it stands */
    const char *settings; /* of the stand-in */
    hd_status status;
    const char *part; /* of the reason */
};

#define STANDIN "tests/standin/libheddle_standin_cuda.so"

static const struct row rows[] = {
    {STANDIN, "", HD_OK, ""},
    {STANDIN, "devices=4", HD_OK, ""},
    {"tests/standin/absent.so", "", HD_UNSUPPORTED, "cannot load the CUDA runtime"},
    {"lib/heddle/abi1/heddle_transport_null.so", "", HD_UNSUPPORTED, "no cudaRuntimeGetVersion"},
    {STANDIN, "runtime=12080", HD_UNSUPPORTED, "is the runtime of CUDA 12.8"},
    {STANDIN, "driver=0", HD_UNSUPPORTED, "there is no NVIDIA driver on this machine"},
    {STANDIN, "driver=12090", HD_UNSUPPORTED, "the NVIDIA driver supports CUDA 12.9"},
    {STANDIN, "devices=0", HD_UNSUPPORTED, "shows no GPU"},
};

static int load(const struct row *row)
{
    struct cuda_library cuda;

    setenv("STANDIN_CUDA", row->settings, 1);
    const hd_status status = cuda_load(&cuda, hd_check_build(row->file));
    const int is_right = status == row->status && strstr(cuda.reason, row->part) != NULL;
    if (!is_right) {
        printf("%s with %s: %d, %s\n", row->file, row->settings, (int)status, cuda.reason);
    }
    if (is_right && status == HD_OK) {
        void *memory = NULL;
        return cuda.cudaMalloc(&memory, 64) == cudaSuccess &&
               cuda.cudaFree(memory) == cudaSuccess && strstr(cuda.path, "standin") != NULL;
    }
    return is_right;
}

static void each_missing_condition_is_a_sentence(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int status = -1;
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            exit(load(&rows[i]) ? 0 : 1);
        }
        CU_ASSERT(waitpid(child, &status, 0) == child);
        CU_ASSERT_EQUAL(status, 0);
    }
}

static void an_error_is_told_with_its_call_and_number(void)
{
    struct cuda_library cuda;
    char text[CUDA_REASON_BYTES];

    CU_ASSERT_FATAL(cuda_load(&cuda, hd_check_build(STANDIN)) == HD_OK);
    CU_ASSERT_STRING_EQUAL(cuda_explain(&cuda, "cudaMalloc", cudaErrorMemoryAllocation, text),
                           "cudaMalloc: out of memory (cudaErrorMemoryAllocation, 2)");
    CU_ASSERT_STRING_EQUAL(
        cuda_explain_driver(&cuda, "cuStreamWaitValue64", CUDA_ERROR_INVALID_VALUE, text),
        "cuStreamWaitValue64: invalid argument (cudaErrorInvalidValue, 1)");
}

/* Where there is a GPU, the real library is loaded in tests of label gpu. */
static void the_real_runtime_loads_or_says_what_is_missing(void)
{
    struct cuda_library cuda;
    const hd_status status = cuda_load(&cuda, "libcudart.so.13");

    CU_ASSERT(status == HD_OK || status == HD_UNSUPPORTED);
    CU_ASSERT((status == HD_OK) == (cuda.reason[0] == '\0'));
    CU_ASSERT((status == HD_OK) == (cuda.device_count > 0));
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"each missing condition is a sentence", each_missing_condition_is_a_sentence},
        {"an error is told with its call and number", an_error_is_told_with_its_call_and_number},
        {"the real runtime loads or says what is missing",
         the_real_runtime_loads_or_says_what_is_missing},
    };
    return hd_check_main("cuda library", checks, HD_CHECK_COUNT(checks));
}

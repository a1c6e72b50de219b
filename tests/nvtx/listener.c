/*
 * tests/nvtx/listener.c - a profiler of NVTX ranges, as small as one can be.
 *
 * NVTX loads it where NVTX_INJECTION64_PATH names it, and asks it to put its own functions into the
 * table that the ranges go through.  It writes what it hears, a line each, into the file
 * HD_NVTX_LOG.PID: "+step 3", "+4B2", "-".
 */
#include <nvtx3/nvToolsExt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static FILE *heard;
static int depth;

static int NVTX_API push(const char *name)
{
    fprintf(heard, "+%s\n", name);
    fflush(heard);
    return depth++;
}

static int NVTX_API pop(void)
{
    fputs("-\n", heard);
    fflush(heard);
    return --depth;
}

__attribute__((visibility("default"))) int NVTX_API
InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table = NULL;
    unsigned int count = 0;
    char path[4096];

    snprintf(path, sizeof path, "%s.%d", getenv("HD_NVTX_LOG"), (int)getpid());
    heard = fopen(path, "we");
    if (heard == NULL || callbacks == NULL ||
        !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &count) ||
        count <= NVTX_CBID_CORE_RangePop) {
        return 0;
    }
    *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
    return 1;
}

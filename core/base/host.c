#include "base/host.h"

#include "base/clock.h"
#include "base/memory.h"

static void *host_alloc(void *context, uint64_t bytes, uint64_t alignment_bytes, const char *tag)
{
    (void)context;
    return hd_memory_take(bytes, alignment_bytes, tag);
}

static void host_free(void *context, void *memory)
{
    (void)context;
    hd_memory_give(memory);
}

static uint64_t host_now_ns(void *context)
{
    (void)context;
    return hd_now_ns();
}

static void host_account(void *context, int64_t bytes, const char *tag)
{
    (void)context;
    hd_memory_account(bytes, tag);
}

struct hd_host hd_host_basics(void)
{
    return (struct hd_host){.size = sizeof(struct hd_host),
                            .alloc = host_alloc,
                            .free = host_free,
                            .now_ns = host_now_ns,
                            .account = host_account};
}

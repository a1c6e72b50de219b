#include "base/memory.h"

#include "base/number.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* In the 64 bytes before every block. */
struct header {
    void *base;
    uint64_t mapped_bytes; /* 0: allocated on the heap */
    uint64_t bytes;
    uint32_t tag;
    uint32_t magic;
};

enum { HEADER_BYTES = 64, MAP_FROM_BYTES = 1 << 16, HUGE_BYTES = 1 << 21 };
#define MEMORY_MAGIC 0x6d656d68u

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hd_memory_use memory_uses[HD_MEMORY_TAG_MAX];
static uint32_t memory_use_count;

static uint32_t memory_tag_index(const char *tag)
{
    for (uint32_t i = 0; i < memory_use_count; i++) {
        if (strcmp(memory_uses[i].tag, tag) == 0) {
            return i;
        }
    }
    assert(memory_use_count < HD_MEMORY_TAG_MAX);
    memory_uses[memory_use_count].tag = tag;
    return memory_use_count++;
}

static uint32_t memory_account(const char *tag, uint64_t bytes)
{
    pthread_mutex_lock(&memory_lock);
    const uint32_t index = memory_tag_index(tag);
    memory_uses[index].bytes += bytes;
    memory_uses[index].peak_bytes =
        hd_max_u64(memory_uses[index].peak_bytes, memory_uses[index].bytes);
    pthread_mutex_unlock(&memory_lock);
    return index;
}

/* A block of at least one huge page begins on a huge page and asks for more of them; without them,
   a product that walks down a matrix misses the TLB in every row.  If the kernel has none, the
   block has small pages. */
static void *memory_map(uint64_t bytes)
{
    const uint64_t spare = bytes >= HUGE_BYTES ? HUGE_BYTES : 0;
    if (bytes > PTRDIFF_MAX) {
        return NULL;
    }
    unsigned char *const whole =
        mmap(NULL, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole == MAP_FAILED) {
        return NULL;
    }
    if (spare == 0) {
        return whole;
    }
    const uint64_t before = -(uintptr_t)whole & (HUGE_BYTES - 1);
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t mapped = hd_round_up(bytes, page);
    if (before > 0) {
        munmap(whole, before);
    }
    munmap(whole + before + mapped, spare - before);
    madvise(whole + before, mapped, MADV_HUGEPAGE);
    return whole + before;
}

void *hd_memory_take(uint64_t bytes, uint64_t alignment_bytes, const char *tag)
{
    const uint64_t align = hd_max_u64(alignment_bytes, HEADER_BYTES);
    const uint64_t total = bytes + align + HEADER_BYTES;
    const bool is_mapped = total >= MAP_FROM_BYTES;
    void *base;

    assert((align & (align - 1)) == 0);
    if (total < bytes) {
        return NULL;
    }
    if (is_mapped) {
        base = memory_map(total);
    } else {
        base = calloc(1, total);
    }
    if (base == NULL) {
        return NULL;
    }
    unsigned char *const memory =
        (unsigned char *)(((uintptr_t)base + HEADER_BYTES + align - 1) & ~(uintptr_t)(align - 1));
    const struct header header = {base, is_mapped ? total : 0, bytes, memory_account(tag, bytes),
                                  MEMORY_MAGIC};
    memcpy(memory - HEADER_BYTES, &header, sizeof header);
    return memory;
}

void hd_memory_give(void *memory)
{
    struct header header;

    if (memory == NULL) {
        return;
    }
    memcpy(&header, (unsigned char *)memory - HEADER_BYTES, sizeof header);
    assert(header.magic == MEMORY_MAGIC);
    pthread_mutex_lock(&memory_lock);
    memory_uses[header.tag].bytes -= header.bytes;
    pthread_mutex_unlock(&memory_lock);
    if (header.mapped_bytes > 0) {
        munmap(header.base, header.mapped_bytes);
    } else {
        free(header.base);
    }
}

void hd_memory_account(int64_t bytes, const char *tag)
{
    if (bytes >= 0) {
        memory_account(tag, (uint64_t)bytes);
        return;
    }
    pthread_mutex_lock(&memory_lock);
    memory_uses[memory_tag_index(tag)].bytes -= (uint64_t)-bytes;
    pthread_mutex_unlock(&memory_lock);
}

uint32_t hd_memory_report(struct hd_memory_use *rows, uint32_t capacity)
{
    pthread_mutex_lock(&memory_lock);
    const uint32_t count = memory_use_count;
    for (uint32_t i = 0; i < count && i < capacity; i++) {
        rows[i] = memory_uses[i];
    }
    pthread_mutex_unlock(&memory_lock);
    return count;
}

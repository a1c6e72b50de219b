#include "conform/check.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CANARY = 0xc5, HEAD_MAGIC = 0x67756172 };

/*
 *   | head | pages: canary, the block, up to alignment - 1 bytes of canary | no access |
 *
 * The head has a page of its own, so that it stays writable when the block is locked.
 */
struct head {
    uint64_t magic;
    unsigned char *block;
    uint64_t bytes, page_bytes, inner_bytes; /* inner: between the head and the last page */
};

static uint64_t guard_page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

void *hd_guard_take(uint64_t bytes, uint64_t alignment_bytes, int fill)
{
    const uint64_t page = guard_page_bytes();
    const uint64_t alignment = alignment_bytes < 8 ? 8 : alignment_bytes;
    const uint64_t rounded = (bytes + alignment - (bytes > 0)) / alignment * alignment;
    const uint64_t inner = (rounded + alignment + page - 1) / page * page;

    assert(alignment <= page && (alignment & (alignment - 1)) == 0);
    unsigned char *start =
        mmap(NULL, page + inner + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        return NULL;
    }
    struct head *head = (struct head *)(void *)start;
    unsigned char *end = start + page + inner;
    *head = (struct head){HEAD_MAGIC, end - rounded, bytes, page, inner};
    memset(start + page, CANARY, inner);
    memset(head->block, fill, bytes);
    const int refused = mprotect(end, page, PROT_NONE);
    assert(refused == 0);
    return head->block;
}

/* The head is in the page before the first page of the canary. */
static struct head *guard_head_of(const void *memory)
{
    const uint64_t page = guard_page_bytes();
    const unsigned char *at = (const unsigned char *)((uintptr_t)memory / page * page);

    for (int step = 0; step < 3; step++, at -= page) {
        struct head *head = (struct head *)(void *)(uintptr_t)at;
        if (head->magic == HEAD_MAGIC && head->block == memory) {
            return head;
        }
    }
    const bool is_guarded_block = false;
    assert(is_guarded_block);
    return NULL;
}

bool hd_guard_is_whole(const void *memory)
{
    const struct head *head = guard_head_of(memory);
    const unsigned char *first = (const unsigned char *)head + head->page_bytes;
    const unsigned char *end = first + head->inner_bytes;

    for (const unsigned char *at = first; at < head->block; at++) {
        if (*at != CANARY) {
            return false;
        }
    }
    for (const unsigned char *at = head->block + head->bytes; at < end; at++) {
        if (*at != CANARY) {
            return false;
        }
    }
    return true;
}

void hd_guard_lock(void *memory, bool is_locked)
{
    struct head *head = guard_head_of(memory);
    const int access = is_locked ? PROT_READ : PROT_READ | PROT_WRITE;
    const int refused =
        mprotect((unsigned char *)head + head->page_bytes, head->inner_bytes, access);

    assert(refused == 0);
}

void hd_guard_give(void *memory)
{
    if (memory != NULL) {
        struct head *head = guard_head_of(memory);
        munmap(head, head->inner_bytes + 2 * head->page_bytes);
    }
}

#include "conform/check.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CANARY = 0xc5, CARD_MAGIC = 0x67756172 };

/*
 *   | card | pages: canary, the block, up to alignment - 1 of canary | no access |
 *
 * The card lies in a page of its own, so that locking the block leaves it as it is.
 */
struct card {
    uint64_t magic;
    unsigned char *block;
    uint64_t bytes, page_bytes, inner_bytes; /* inner: between the card and the last page */
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
    struct card *card = (struct card *)(void *)start;
    unsigned char *end = start + page + inner;
    *card = (struct card){CARD_MAGIC, end - rounded, bytes, page, inner};
    memset(start + page, CANARY, inner);
    memset(card->block, fill, bytes);
    const int refused = mprotect(end, page, PROT_NONE);
    assert(refused == 0);
    return card->block;
}

/* The card stands in the page before the block's first page with a canary. */
static struct card *guard_card_of(const void *memory)
{
    const uint64_t page = guard_page_bytes();
    const unsigned char *at = (const unsigned char *)((uintptr_t)memory / page * page);

    /* A block whose first byte begins a page has its whole canary in the page before. */
    for (int step = 0; step < 3; step++, at -= page) {
        struct card *card = (struct card *)(void *)(uintptr_t)at;
        if (card->magic == CARD_MAGIC && card->block == memory) {
            return card;
        }
    }
    const int is_guarded_block = 0;
    assert(is_guarded_block);
    return NULL;
}

int hd_guard_is_whole(const void *memory)
{
    const struct card *card = guard_card_of(memory);
    const unsigned char *first = (const unsigned char *)card + card->page_bytes;
    const unsigned char *end = first + card->inner_bytes;

    for (const unsigned char *at = first; at < card->block; at++) {
        if (*at != CANARY) {
            return 0;
        }
    }
    for (const unsigned char *at = card->block + card->bytes; at < end; at++) {
        if (*at != CANARY) {
            return 0;
        }
    }
    return 1;
}

void hd_guard_lock(void *memory, int is_locked)
{
    struct card *card = guard_card_of(memory);
    const int access = is_locked ? PROT_READ : PROT_READ | PROT_WRITE;
    const int refused =
        mprotect((unsigned char *)card + card->page_bytes, card->inner_bytes, access);

    assert(refused == 0);
}

void hd_guard_give(void *memory)
{
    if (memory != NULL) {
        struct card *card = guard_card_of(memory);
        munmap(card, card->inner_bytes + 2 * card->page_bytes);
    }
}

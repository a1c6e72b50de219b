/* conform/exports.c - the symbols that a loaded plugin exports. */
#include "conform/suites.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>

/* The tables of one loaded object that its dynamic section names. */
struct exports {
    const ElfW(Sym) * symbols;
    const char *names;
    const uint32_t *hash; /* DT_GNU_HASH: only defined symbols are in it */
};

static struct exports exports_find(const struct link_map *map)
{
    struct exports found = {NULL, NULL, NULL};

    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        const ElfW(Addr) given = entry->d_un.d_ptr; /* absolute, but on some machines relative */
        const void *const at = (const void *)(given < map->l_addr ? map->l_addr + given : given);
        if (entry->d_tag == DT_SYMTAB) {
            found.symbols = at;
        } else if (entry->d_tag == DT_STRTAB) {
            found.names = at;
        } else if (entry->d_tag == DT_GNU_HASH) {
            found.hash = at;
        }
    }
    return found;
}

/* Names that begin with two underscores are the compiler's, for example of a sanitizer. */
static bool exports_is_foreign(const struct exports *exports, uint32_t symbol)
{
    const char *name = exports->names + exports->symbols[symbol].st_name;

    return strcmp(name, "hd_plugin") != 0 && strncmp(name, "__", 2) != 0 && name[0] != '\0';
}

/* The hash table is: bucket count, first symbol, bloom words, shift; the bloom words (each as long
   as an address); the buckets; a word for each symbol, whose lowest bit ends a bucket's chain. */
static const char *exports_search(const struct exports *exports)
{
    const uint32_t bucket_count = exports->hash[0], first = exports->hash[1];
    const uint32_t words_per_bloom = sizeof(ElfW(Addr)) / sizeof(uint32_t);
    const uint32_t *buckets = exports->hash + 4 + exports->hash[2] * words_per_bloom;
    const uint32_t *chains = buckets + bucket_count;

    for (uint32_t bucket = 0; bucket < bucket_count; bucket++) {
        uint32_t symbol = buckets[bucket];
        bool is_last = symbol < first;
        for (; !is_last; symbol++) {
            if (exports_is_foreign(exports, symbol)) {
                return exports->names + exports->symbols[symbol].st_name;
            }
            is_last = (chains[symbol - first] & 1) != 0;
        }
    }
    return NULL;
}

const char *hd_conform_foreign_export(const void *address)
{
    struct link_map *map = NULL;
    Dl_info info;

    if (dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL ||
        map->l_name == NULL || map->l_name[0] == '\0') {
        return NULL; /* not of a loaded file */
    }
    const struct exports exports = exports_find(map);
    const bool is_known = exports.symbols != NULL && exports.names != NULL && exports.hash != NULL;
    return is_known ? exports_search(&exports) : NULL;
}

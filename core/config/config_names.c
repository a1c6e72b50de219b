/* config/config_names.c - is there such a section, such a key; and if not, which is nearest. */
#include "base/text.h"
#include "config/internal.h"

#include <stdio.h>
#include <string.h>

const struct hd_key *hd_key_find(const char *section, const char *name)
{
    for (uint32_t i = 0; i < hd_key_count; i++) {
        if (strcmp(hd_keys[i].section, section) == 0 && strcmp(hd_keys[i].name, name) == 0) {
            return &hd_keys[i];
        }
    }
    return NULL;
}

static int config_names_is_plugin_section(const char *section)
{
    char kind[64];
    const char *dot = strchr(section, '.');

    if (dot == NULL || (size_t)(dot - section) >= sizeof kind) {
        return 0;
    }
    memcpy(kind, section, (size_t)(dot - section));
    kind[dot - section] = '\0';
    return hd_kind_of_name(kind) != 0;
}

hd_status hd_section_check(const char *section, struct hd_problem *problem)
{
    struct hd_nearest nearest = {.wanted = section};

    if (config_names_is_plugin_section(section)) {
        if (hd_text_is_name(strchr(section, '.') + 1)) {
            return HD_OK;
        }
        hd_problem_key(problem, "[%.100s]", section);
        hd_problem_remedy(problem, "use the name that `heddle list` shows");
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "a plugin's name is of a-z, 0-9 and _, at most 63 bytes");
    }
    for (uint32_t i = 0; i < hd_key_count; i++) {
        if (strcmp(hd_keys[i].section, section) == 0) {
            return HD_OK;
        }
        hd_nearest_offer(&nearest, hd_keys[i].section);
    }
    hd_problem_key(problem, "[%.100s]", section);
    hd_problem_remedy(problem, "the nearest one is [%s]", nearest.name);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "no such section");
}

hd_status hd_key_unknown(const char *section, const char *name, struct hd_problem *problem)
{
    struct hd_nearest nearest = {.wanted = name};

    hd_problem_key(problem, "%.60s.%.60s", section, name);
    for (uint32_t i = 0; i < hd_key_count; i++) {
        if (strcmp(hd_keys[i].name, name) == 0) {
            hd_problem_remedy(problem, "it belongs to [%s]", hd_keys[i].section);
            return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "no such key");
        }
        if (strcmp(hd_keys[i].section, section) == 0) {
            hd_nearest_offer(&nearest, hd_keys[i].name);
        }
    }
    hd_problem_remedy(problem, "the nearest one is %s.%s", section, nearest.name);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "no such key");
}

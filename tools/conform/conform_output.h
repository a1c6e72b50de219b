/* conform/conform_output.h - what heddle conform prints: text, JSON, JUnit XML. */
#ifndef HEDDLE_CONFORM_CONFORM_OUTPUT_H
#define HEDDLE_CONFORM_CONFORM_OUTPUT_H

#include "cli/cli.h"
#include "conform/conform.h"

struct hd_conform_summary {
    const struct hd_plugin *plugin;
    const char *path;
    uint32_t level;
    uint64_t seed;
    uint32_t count;
    const struct hd_conform_result *results; /* [count] */
    uint32_t verdicts[3];                    /* how many of each enum hd_conform_verdict */
};

void hd_conform_print_head(const struct hd_cli *cli, const struct hd_conform_summary *summary);
void hd_conform_print_row(const struct hd_cli *cli, const struct hd_conform_result *result);

/* --list: "  api        slots             slots are aligned, do not overlap, .." */
void hd_conform_print_list(struct hd_cli *cli, uint32_t kind, const struct hd_conform_check *suite,
                           uint32_t count);

/* Prints the last line or the members of --json, and writes the file of --junit; the exit code. */
int hd_conform_finish_output(struct hd_cli *cli, const struct hd_conform_summary *summary);

#endif /* HEDDLE_CONFORM_CONFORM_OUTPUT_H */

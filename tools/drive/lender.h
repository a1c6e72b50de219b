/*
 * drive/lender.h - finds the kernel plugin that lends a device for a transport's slots
 * (drive/lent.h).
 */
#ifndef HEDDLE_DRIVE_LENDER_H
#define HEDDLE_DRIVE_LENDER_H

#include "cli/cli.h"

#include <heddle/kernel.h>

struct hd_lender {
    const struct hd_candidate *kernel; /* NULL: the slots are in host memory */
    struct hd_option_value *options;   /* owned; in the order of its table */
};

/* A kernel with its options.  Its option `memory`, if it has one that is not set, becomes cuda.  On
   failure the lender is finished already. */
hd_status hd_lender_find(struct hd_cli *cli, struct hd_config *config,
                         const struct hd_cli_wanted *wanted, struct hd_lender *lender);
void hd_lender_finish(struct hd_lender *lender);

#endif /* HEDDLE_DRIVE_LENDER_H */

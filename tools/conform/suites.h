/* conform/suites.h - one table of checks for each kind of plugin, which ends with an empty row, and
   the checks that the tables share. */
#ifndef HEDDLE_CONFORM_SUITES_H
#define HEDDLE_CONFORM_SUITES_H

#include "conform/check.h"

#include <stddef.h>

extern const struct hd_conform_check hd_conform_schedules[];
extern const struct hd_conform_check hd_conform_transports[];
extern const struct hd_conform_check hd_conform_kernels[];

/* common.c */
void hd_conform_descriptor(struct hd_conform_case *check);
void hd_conform_options(struct hd_conform_case *check);

/* exports.c: the name of a symbol, other than hd_plugin, that the file at `address` exports; NULL:
   there is none. */
const char *hd_conform_foreign_export(const void *address);

/* schedule_*.c */
void hd_conform_schedule_refusal(struct hd_conform_case *check);
void hd_conform_schedule_placement(struct hd_conform_case *check);
void hd_conform_schedule_counting(struct hd_conform_case *check);
void hd_conform_schedule_scratch(struct hd_conform_case *check);
void hd_conform_schedule_laws(struct hd_conform_case *check);
void hd_conform_schedule_forward_only(struct hd_conform_case *check);
void hd_conform_schedule_large(struct hd_conform_case *check);
void hd_conform_schedule_purity(struct hd_conform_case *check);
void hd_conform_schedule_quiet(struct hd_conform_case *check);
void hd_conform_schedule_linear(struct hd_conform_case *check);
void hd_conform_schedule_limits(struct hd_conform_case *check);
void hd_conform_schedule_speed(struct hd_conform_case *check);

#endif /* HEDDLE_CONFORM_SUITES_H */

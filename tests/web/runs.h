/* web/runs.h - checks of test_web.c on pages that `heddle run` leaves, in this order. */
#ifndef HD_TESTS_WEB_RUNS_H
#define HD_TESTS_WEB_RUNS_H

void web_test_measured(void);
void web_test_transfers(void);
void web_test_resident(void); /* on the page of transfers */
void web_test_learned(void);

#endif /* HD_TESTS_WEB_RUNS_H */

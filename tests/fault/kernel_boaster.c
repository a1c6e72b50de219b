/* See kernel_half.c. */
#define BOASTS
#include "kernel_half.c"

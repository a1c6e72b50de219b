/* It exports something, and not hd_plugin. */
#include <heddle/plugin.h>
HD_EXPORT const uint32_t hd_plugins = 1;

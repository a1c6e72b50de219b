/* Its hd_plugin is a function. */
#include <heddle/plugin.h>
HD_EXPORT void hd_plugin(void);
void hd_plugin(void)
{
}

#include "base/option.h"
#include "base/text.h"
#include "conform/suites.h"

#include <string.h>

static bool common_is_sentence(const char *text)
{
    return text != NULL && text[0] != '\0' &&
           hd_text_utf8_bytes(text, strlen(text)) == strlen(text) && strchr(text, '\n') == NULL;
}

/* The capability bits that the kind defines. */
static uint64_t common_known_capabilities(uint32_t kind)
{
    if (kind == HD_KIND_TRANSPORT) {
        return (HD_TRANSPORT_MANY_HOSTS * 2 - 1) | HD_TRANSPORT_SERIAL | HD_TRANSPORT_PROGRESS |
               HD_TRANSPORT_TARGET_PROGRESS | HD_TRANSPORT_HOOK;
    }
    return kind == HD_KIND_KERNEL ? HD_KERNEL_MXFP8_EMULATED * 2 - 1 : 0;
}

/* A function of the plugin's file; the registry has copied the tables. */
static const void *common_address(const struct hd_plugin *plugin)
{
    const void *address = NULL;

    if (plugin->kind == HD_KIND_SCHEDULE) {
        const struct hd_schedule_ops *ops = plugin->ops;
        memcpy(&address, &ops->plan, sizeof address);
    } else if (plugin->kind == HD_KIND_TRANSPORT) {
        const struct hd_transport_ops *ops = plugin->ops;
        memcpy(&address, &ops->open, sizeof address);
    } else {
        const struct hd_kernel_ops *ops = plugin->ops;
        memcpy(&address, &ops->open, sizeof address);
    }
    return address;
}

void hd_conform_descriptor(struct hd_conform_case *check)
{
    const struct hd_plugin *plugin = check->plugin;
    const struct {
        const char *name, *text;
    } texts[] = {
        {"summary", plugin->summary}, {"vendor", plugin->vendor}, {"version", plugin->version},
        {"licence", plugin->licence}, {"source", plugin->source},
    };

    HD_HOLD(check, plugin->name != NULL && hd_text_is_name(plugin->name),
            "invalid plugin name: it must be [a-z0-9_]+ of at most 48 bytes");
    HD_HOLD(check, common_is_sentence(plugin->summary), "the summary is not one line of UTF-8");
    for (uint32_t i = 1; i < sizeof texts / sizeof texts[0]; i++) {
        HD_HOLD(check,
                texts[i].text == NULL || texts[i].text[0] == '\0' ||
                    common_is_sentence(texts[i].text),
                "the %s is not one line of UTF-8", texts[i].name);
    }
    const uint64_t unknown = plugin->capabilities & ~common_known_capabilities(plugin->kind);
    HD_HOLD(check, unknown == 0, "capability bits 0x%llx are undefined for a %s",
            (unsigned long long)unknown, hd_kind_name(plugin->kind));
    const char *foreign = hd_conform_foreign_export(common_address(plugin));
    HD_HOLD(check, foreign == NULL,
            "the file exports %s besides hd_plugin, which may replace a symbol of heddle or of a "
            "library: build it with -fvisibility=hidden",
            foreign);
    hd_conform_remark(check, "ABI %u.%u", plugin->abi_major, plugin->abi_minor);
}

void hd_conform_options(struct hd_conform_case *check)
{
    const struct hd_plugin *plugin = check->plugin;
    char reason[HD_REASON_BYTES];

    HD_HOLD(check, hd_option_table_is_sound(plugin->options, plugin->option_count, reason), "%s",
            reason);
    for (uint32_t i = 0; i < plugin->option_count; i++) {
        HD_HOLD(check, common_is_sentence(plugin->options[i].help), "option %s has no help text",
                plugin->options[i].name);
    }
    hd_conform_remark(check, "%u options", plugin->option_count);
}

/*
 * ucx/name.c - which transport of UCX carries a channel.
 *
 * UCX chooses its transports itself, and a slow choice is easily overlooked.  UCX 1.13 shows its
 * choice only in the text of ucp_ep_print_info, so this file parses that text.  There a "lane" is
 * one transport of an endpoint:
 *
 *     lane[0]:  4:posix/memory.0 md[3]    -> md[3]/posix/sysdev[255] am am_bw#0
 *     lane[1]:  5:cma/memory.0 md[4]      -> md[4]/cma/sysdev[255] rma_bw#0
 *       put[0]: 0..<short>..4294967296..<bcopy>..(inf)
 *
 * The last line exists only if a lane supports puts; otherwise UCX emulates them.
 */
#include "ucx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct choice {
    char eager[16]; /* carries active messages */
    char bulk[16];  /* carries the payload of a rendezvous, if that is another */
    bool has_puts;
    bool has_other; /* a lane that is not shared memory */
};

/* "4:posix/memory.0" becomes "posix", "6:tcp/eth0.0" becomes "tcp/eth0". */
static void ucx_shorten(const char *resource, char name[16])
{
    const char *colon = strchr(resource, ':');
    const char *start = colon != NULL ? colon + 1 : resource;
    size_t length = strcspn(start, ". ");

    if (length > 7 && strncmp(start + length - 7, "/memory", 7) == 0) {
        length -= 7;
    }
    snprintf(name, 16, "%.*s", (int)length, start);
}

static void ucx_read_line(const char *line, struct choice *choice)
{
    char name[16];
    char resource[64];
    const char *lane = strstr(line, "lane[");
    const char *uses = strstr(line, "->");

    choice->has_puts = choice->has_puts || strstr(line, " put[") != NULL;
    if (lane == NULL || uses == NULL || sscanf(lane, "lane[%*d]: %63s", resource) != 1) {
        return;
    }
    ucx_shorten(resource, name);
    choice->has_other = choice->has_other || strstr(resource, "/memory") == NULL;
    const char *message = strstr(uses, " am");
    if (message != NULL && (message[3] == ' ' || message[3] == '\n' || message[3] == '\0')) {
        snprintf(choice->eager, sizeof choice->eager, "%s", name);
    }
    if (strstr(uses, " rma_bw") != NULL && choice->bulk[0] == '\0') {
        snprintf(choice->bulk, sizeof choice->bulk, "%s", name);
    }
}

static struct choice ucx_read_choice(ucp_ep_h ep)
{
    struct choice choice = {"?", "", false, false};
    char *text = NULL;
    size_t bytes = 0;
    char *rest = NULL;
    FILE *stream = open_memstream(&text, &bytes);

    if (stream == NULL) {
        return choice;
    }
    ucp_ep_print_info(ep, stream);
    fclose(stream);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        ucx_read_line(line, &choice);
    }
    free(text);
    return choice;
}

bool ucx_has_puts(ucp_ep_h ep)
{
    return ucx_read_choice(ep).has_puts;
}

bool ucx_is_memory(ucp_ep_h ep)
{
    const struct choice choice = ucx_read_choice(ep);

    return choice.has_puts && !choice.has_other;
}

void ucx_name_channels(struct hd_transport *instance, const struct ucx_peer *peer)
{
    const struct choice choice = ucx_read_choice(peer->ep);
    const char *way = peer->is_messaged ? ", by messages"
                      : peer->is_mapped ? ", stored in place"
                                        : "";
    const bool has_bulk = choice.bulk[0] != '\0' && strcmp(choice.bulk, choice.eager) != 0;

    book_log(&instance->book, "UCX has chosen %s%s%s%s for rank %u", choice.eager,
             has_bulk ? ", and for large messages " : "", has_bulk ? choice.bulk : "", way,
             peer->book.rank);
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        struct ucx_channel *channel = &instance->channels[i];
        if (channel->peer == peer && instance->mode->writes_remotely) {
            snprintf(channel->book.carrier, sizeof channel->book.carrier, "%s%s", choice.eager,
                     way);
        } else if (channel->peer == peer) {
            snprintf(channel->book.carrier, sizeof channel->book.carrier, "%s%s%s", choice.eager,
                     has_bulk ? "+" : "", has_bulk ? choice.bulk : "");
        }
    }
}

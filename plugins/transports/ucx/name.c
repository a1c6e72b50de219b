/*
 * ucx/name.c - which of UCX's channels really carries a channel.
 *
 * UCX chooses by itself, and slower than one thinks when it must: in 1.13 the only place where it
 * says what it chose is the text of ucp_ep_print_info, so that is what is read:
 *
 *     channel[0]:  4:posix/memory.0 md[3]    -> md[3]/posix/sysdev[255] am am_bw#0
 *     channel[1]:  5:cma/memory.0 md[4]      -> md[4]/cma/sysdev[255] rma_bw#0
 *       put[0]: 0..<short>..4294967296..<bcopy>..(inf)
 *
 * The last line is there only if some channel can put; else a put is emulated.
 */
#include "ucx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct choice {
    char eager[16]; /* carries active messages */
    char bulk[16];  /* and the payload of a rendezvous, if another does */
    int has_puts;
    int has_other; /* a channel that is no shared memory */
};

/* "4:posix/memory.0" is "posix", "6:tcp/eth0.0" is "tcp/eth0". */
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

    choice->has_puts |= strstr(line, " put[") != NULL;
    if (lane == NULL || uses == NULL || sscanf(lane, "lane[%*d]: %63s", resource) != 1) {
        return;
    }
    ucx_shorten(resource, name);
    choice->has_other |= strstr(resource, "/memory") == NULL;
    const char *message = strstr(uses, " am");
    if (message != NULL && (message[3] == ' ' || message[3] == '\n' || message[3] == '\0')) {
        snprintf(choice->eager, sizeof choice->eager, "%s", name);
    }
    if (strstr(uses, " rma_bw") != NULL && choice->bulk[0] == '\0') {
        snprintf(choice->bulk, sizeof choice->bulk, "%s", name);
    }
}

static void ucx_read_choice(ucp_ep_h ep, struct choice *choice)
{
    char *text = NULL;
    size_t bytes = 0;
    char *rest = NULL;
    FILE *stream = open_memstream(&text, &bytes);

    if (stream == NULL) {
        return;
    }
    ucp_ep_print_info(ep, stream);
    fclose(stream);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        ucx_read_line(line, choice);
    }
    free(text);
}

int ucx_has_puts(ucp_ep_h ep)
{
    struct choice choice = {"", "", 0, 0};

    ucx_read_choice(ep, &choice);
    return choice.has_puts;
}

int ucx_is_memory(ucp_ep_h ep)
{
    struct choice choice = {"", "", 0, 0};

    ucx_read_choice(ep, &choice);
    return choice.has_puts && !choice.has_other;
}

void ucx_name_channels(struct hd_transport *instance, const struct ucx_peer *peer)
{
    struct choice choice = {"?", "", 0, 0};
    const char *way = "";

    ucx_read_choice(peer->ep, &choice);
    way = peer->is_mapped ? ", stored in place" : way;
    way = peer->is_messaged ? ", by messages" : way;
    const int has_bulk = choice.bulk[0] != '\0' && strcmp(choice.bulk, choice.eager) != 0;
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

#include "train/grammar.h"
#include "train/initial.h"

#include <assert.h>
#include <string.h>

/*
 * A capital letter with a digit is replaced by a random word, the same one in the whole line: N a
 * name, A an adjective, T a thing, P a place, D a number from two to nine; S0 is D1 + D2 in words.
 */
static const char *const grammar_lines[] = {
    "N1 gives N2 the A1 T1. N2 thanks N1 for the T1.\n",
    "the A1 T1 of N1 is in the P1. where is the T1? in the P1.\n",
    "N1 goes from the P1 to the P2. now N1 is in the P2.\n",
    "N1 has D1 T1s, N2 has D2 T1s. together they have S0 T1s.\n",
    "N1 sees N2 in the P1. N2 has a A1 T1.\n",
    "is the T1 A1 or A2? N1 says it is A1.\n",
    "N1 puts the A1 T1 and the A2 T2 in the P1.\n",
    "D1 and D2 make S0.\n",
};

enum {
    LINE_COUNT = sizeof grammar_lines / sizeof grammar_lines[0],
    WORD_MAX = 17,
    DIGIT_COUNT = 3
};

enum class { NAME, HOW, THING, PLACE, NUMBER, CLASS_COUNT };

static const struct {
    char letter;
    uint32_t draw_count; /* of the words to choose from */
    const char *words[WORD_MAX];
} grammar_classes[CLASS_COUNT] = {
    [NAME] = {'N', 8, {"anna", "ben", "clara", "david", "emma", "frank", "greta", "hugo"}},
    [HOW] = {'A', 8, {"red", "blue", "small", "big", "new", "round", "heavy", "green"}},
    [THING] = {'T', 8, {"ball", "book", "lamp", "stone", "apple", "boat", "coin", "drum"}},
    [PLACE] = {'P',
               8,
               {"house", "garden", "school", "market", "kitchen", "forest", "barn", "mill"}},
    [NUMBER] = {'D',
                8,
                {"two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
                 "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"}},
};

static const char grammar_alphabet[] = " \n.,?abcdefghijklmnopqrstuvwxyz";

/* The random choices of a line: which line it is, and a word for every class and digit. */
struct draws {
    uint32_t line;
    uint32_t words[CLASS_COUNT][DIGIT_COUNT];
};

static void grammar_draw(struct draws *draws, uint64_t seed, uint64_t page, uint32_t line)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t block[4];

    for (uint32_t class = 0; class < CLASS_COUNT; class ++) {
        const uint32_t counter[4] = {(uint32_t)page, (uint32_t)(page >> 32), line, class};
        uint32_t *const words = draws->words[class];
        const uint32_t count = grammar_classes[class].draw_count;
        hd_philox(counter, key, block);
        words[0] = block[0] % count;
        words[1] = block[1] % count;
        words[2] = block[2] % count;
        /* The two words of a class differ; only two numbers may be equal. */
        if (words[2] == words[1] && class != NUMBER) {
            words[2] = (words[1] + 1) % count;
        }
        draws->line = class == 0 ? block[3] % LINE_COUNT : draws->line;
    }
}

static const char *grammar_word_of(const struct draws *draws, char letter, char digit)
{
    const uint32_t *const numbers = draws->words[NUMBER];

    if (letter == 'S') {
        return grammar_classes[NUMBER]
            .words[numbers[1] + numbers[2] + 2]; /* the list begins at two */
    }
    for (uint32_t class = 0; class < CLASS_COUNT; class ++) {
        if (grammar_classes[class].letter == letter) {
            return grammar_classes[class].words[draws->words[class][digit - '0']];
        }
    }
    return NULL;
}

/* Writes one line, or as much of it as fits; returns the bytes written. */
static uint32_t grammar_write_line(const struct draws *draws, char *text, uint32_t room_bytes)
{
    uint32_t used_bytes = 0;

    for (const char *at = grammar_lines[draws->line]; *at != '\0' && used_bytes < room_bytes;
         at++) {
        if (*at < 'A' || *at > 'Z') {
            text[used_bytes++] = *at;
            continue;
        }
        const char *const word = grammar_word_of(draws, at[0], at[1]);
        assert(word != NULL);
        const uint32_t length = (uint32_t)strlen(word);
        const uint32_t left = room_bytes - used_bytes;
        const uint32_t taken = length < left ? length : left;
        memcpy(text + used_bytes, word, taken);
        used_bytes += taken;
        at++;
    }
    return used_bytes;
}

void hd_grammar_page(uint64_t seed, uint64_t page, char text[HD_GRAMMAR_PAGE_BYTES])
{
    uint32_t used_bytes = 0;

    for (uint32_t line = 0; used_bytes < HD_GRAMMAR_PAGE_BYTES; line++) {
        struct draws draws = {0};
        grammar_draw(&draws, seed, page, line);
        used_bytes +=
            grammar_write_line(&draws, text + used_bytes, HD_GRAMMAR_PAGE_BYTES - used_bytes);
    }
}

int32_t hd_grammar_id(char letter, uint32_t vocabulary)
{
    const char *const place = strchr(grammar_alphabet, letter);

    assert(place != NULL && vocabulary > 0);
    return vocabulary >= 128 ? letter
                             : (int32_t)((uint32_t)(place - grammar_alphabet) % vocabulary);
}

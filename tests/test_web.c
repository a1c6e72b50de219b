/*
 * tests/test_web.c - report.html as a person uses it: in a browser, with keys and clicks, in light
 * and dark, wide and narrow.
 *
 * Pages are made by the heddle of this build; each test loads some, acts, and reads the text that
 * is then there.  None may log an error.  Screenshots stay in tests/web/ of the build tree.
 *
 * Sources: issue "See it"; the report, figures 25 and 26 and Table 10.
 */
#include "support/check.h"
#include "support/command.h"
#include "web/reader.h"
#include "web/runs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TABLE10                                                            \
    "pipeline.ranks=4 pipeline.stages_per_rank=2 pipeline.microbatches=8 " \
    "memory.state_gb=12 memory.copy_gb=10 memory.budget_gb=80 --timeline drawn "

/* Classes are the core's: what the page counts by itself must be what the plan says. */
#define COUNTED                                                                           \
    "(() => { const plan = heddle.plan, sums = {local: 0, hidden: 0, exposed: 0};"        \
    "for (let i = 0; i < plan.count; i++) { const way = plan.handoffClass(i); if (way) {" \
    "sums[way]++; } } return JSON.stringify(sums) === JSON.stringify(plan.facts.handoffs); })()"
#define PEAKS                                                                                      \
    "(() => { const plan = heddle.plan; return plan.facts.peak_copies.every((peak, rank) => peak " \
    "=== plan.held.slice(plan.begin[rank], plan.begin[rank + 1]).reduce((a, b) => Math.max(a, "    \
    "b), 0)); })()"
#define POOLS                                                          \
    "heddle.plan.facts.retention.every((most, stage) => most === 1 + " \
    "heddle.plan.leases(stage).reduce((a, lease) => Math.max(a, lease.slot), 0))"

/* Figure 25, at the tick that the report shows. */
static void test_interleaved(void)
{
    web_make("plan pipeline.schedule=interleaved_1f1b " TABLE10 "--html interleaved.html");
    browser_size(&web_browser, 1440, 900);
    browser_media(&web_browser, "light", "screen");
    web_load("interleaved.html", "");
    web_shows("h1", "interleaved_1f1b, 4 ranks, 8 microbatches");
    web_shows(".stats", "57 ticks");
    web_shows(".stats", "36 / 228");
    web_shows(".stats", "15.8 % 18.8 % over ideal");
    web_shows(".stats", "11 \u00b7 9 \u00b7 7 \u00b7 5");
    web_shows(".stats", "0 \u00b7 59 \u00b7 53");
    web_shows(".stats", "rank 3");
    web_focus_grid();
    web_keys("ArrowRight", 16);
    web_shows("#at-tick", "rank 0 0F6 forward 11 11 rank 1 1F5 forward 9 9 "
                          "rank 2 2F4 forward 7 7 rank 3 7F3 forward 5 5");
    web_shows("#pool", "Stage 0 needs 8 slots");
    web_shows("#pool", "After tick 16, 7 are leased");
    web_shows(".slots", "slot 6 microbatch 6 slot 7 free");
    web_is(COUNTED, "true");
    web_is(PEAKS, "true");
    web_is(POOLS, "true");
    /* Table 10: 12 + 10 x copies GB under a budget of 80. */
    web_is("heddle.view.budgets.map((budget) => budget.toFixed(1)).join()", "6.8,6.8,6.8,6.8");
    web_shot("schedule-light");
}

/* Figure 26: what runs on the receiver while a transfer is under way. */
static void test_windows(void)
{
    web_load("interleaved.html", "#tick=16");
    web_shows("#handoffs", "5B0 \u2192 4B0 1 \u2192 0 hidden 0F6");
    web_shows("#handoffs", "0F6 \u2192 1F6 0 \u2192 1 hidden 5B1");
    web_shows("#handoffs", "5B1 \u2192 4B1 1 \u2192 0 hidden 0F7");
    web_shows("#window",
              "5B0 \u2192 4B0 hidden: activation gradient, rank 1 to rank 0; rank 0 runs "
              "0F6, which does not consume it, before 4B0.");
    web_shows("#window", "0F6 \u2192 1F6 hidden: activation, rank 0 to rank 1; rank 1 runs 5B1");
    web_shows("#window",
              "5B1 \u2192 4B1 hidden: activation gradient, rank 1 to rank 0; rank 0 runs "
              "0F7");
    web_is("document.querySelectorAll('#window li').length", "3");
    web_is("document.querySelectorAll('.execution').length", "2");
    /* Three transfers of half a tick between passes, or under them. */
    web_is("document.querySelectorAll('.execution .way.hidden').length", "3");
    web_is("document.querySelectorAll('.execution .beside').length", "3");
    web_shows("#window-note", "Ticks 16 to 21 of ranks 0 and 1");
    web_shows("#window-note", "7.5 ticks without overlap, 6 with it");
    web_shot("window-interleaved");
    web_make("plan pipeline.schedule=1f1b_v " TABLE10 "--html v.html");
    web_load("v.html", "#tick=27");
    web_shows(".stats", "63 ticks");
    web_shows(".stats", "23.8 %");
    web_shows(".stats", "6 \u00b7 6 \u00b7 6 \u00b7 6");
    web_shows(".stats", "16 \u00b7 18 \u00b7 78");
    web_shows(".stats", "rank 0");
    web_is("document.getElementById('from').value = 27; document.getElementById('to').value = 30; "
           "document.getElementById('to').dispatchEvent(new Event('input')); "
           "document.querySelectorAll('#handoffs tbody tr').length > 0",
           "true");
    web_shows("#handoffs", "exposed nothing");
    web_shows("#handoffs", "hidden");
    web_shows("#window", "nothing else could be moved before it without another schedule");
    web_is("document.querySelectorAll('.execution .way.exposed').length > 0", "true");
    browser_media(&web_browser, "dark", "screen");
    web_shot("window-v-dark");
    browser_size(&web_browser, 390, 844);
    web_is("document.documentElement.scrollWidth <= innerWidth", "true");
    web_shot("window-narrow");
    browser_size(&web_browser, 1440, 900);
    browser_media(&web_browser, "light", "screen");
    web_is(COUNTED, "true");
    web_is(PEAKS, "true");
    web_shot("schedule-v");
}

static void test_follow(void)
{
    web_load("interleaved.html", "#tick=16&rank=1");
    web_focus_grid();
    browser_key(&web_browser, "Enter");
    web_shows("#followed", "Microbatch 5 through 8 stages");
    web_is("document.querySelectorAll('#followed tbody tr').length", "8");
    web_shows("#followed", "0 0 0F5 9 0B5 51\u201352 exposed");
    web_shows("#say", "rank 1: 1F5");
    browser_media(&web_browser, "dark", "screen");
    web_shot("follow-dark");
    browser_key(&web_browser, "Escape");
    web_shows("#followed", "Choose a number");
    browser_media(&web_browser, "light", "screen");
    web_keys("ArrowDown", 5); /* stops at the last rank */
    web_keys("ArrowRight", 1);
    browser_key(&web_browser, "Enter");
    web_shows("#followed", "Microbatch 3 through 8 stages");
}

/* A click in the grid, in the middle of 0F6; the tooltip says what lies there. */
static void test_click(void)
{
    web_load("interleaved.html", "");
    const double left = browser_number(
        &web_browser, "document.querySelector('canvas').getBoundingClientRect().left + "
                      "heddle.view.timeline.xAt(16.5)");
    const double top = browser_number(
        &web_browser, "document.querySelector('canvas').getBoundingClientRect().top + 18 + "
                      "heddle.view.row / 2");
    browser_click(&web_browser, left, top);
    web_shows("#at-tick", "rank 0 0F6 forward 11 11");
    web_shows("#followed", "Microbatch 6");
    browser_move(&web_browser, left + 1, top);
    web_shows("#tip", "0F6 on rank 0");
    web_no_errors("click");
}

/* Zoom keeps the cursor in sight; the whole fits again. */
static void test_zoom(void)
{
    web_load("interleaved.html", "#tick=50");
    web_focus_grid();
    web_keys("+", 3);
    web_is("heddle.view.timeline.isFit", "false");
    web_is("(() => { const x = heddle.view.timeline.xAt(heddle.shared.tick); return x >= 64 && x < "
           "heddle.view.timeline.width; })()",
           "true");
    browser_key(&web_browser, "Home");
    web_is("document.querySelector('.scroller').scrollLeft", "0");
    browser_key(&web_browser, "0");
    web_is("heddle.view.timeline.isFit", "true");
    web_no_errors("zoom");
}

/* Every figure has its data as a table: opened, it holds the plan's actions. */
static void test_data(void)
{
    web_load("interleaved.html", "");
    free(browser_text(&web_browser,
                      "document.querySelectorAll('details').forEach((one) => { one.open = "
                      "true; })"));
    CU_ASSERT_TRUE(browser_await(&web_browser,
                                 "document.querySelectorAll('details table').length === "
                                 "2"));
    web_is("document.querySelectorAll('details table')[0].querySelectorAll('tbody tr').length",
           "128");
    web_opens("numbers");
    web_shows("#memory", "rank 0 11 12.0 GB 110 GB 0 B 122 GB over");
    web_shows("#memory", "rank 3 5 12.0 GB 50.0 GB 0 B 62.0 GB fits");
    web_shows("#config", "memory.budget_gb 80 command line");
    web_shot("numbers-light");
}

/* No line of a page is wider than the page, whatever its width. */
static void test_widths(void)
{
    static const unsigned widths[] = {360, 768, 1440, 2560};

    for (unsigned i = 0; i < HD_CHECK_COUNT(widths); i++) {
        browser_size(&web_browser, widths[i], 900);
        web_load("interleaved.html", "#tick=16&follow=3");
        web_is("document.documentElement.scrollWidth <= innerWidth", "true");
        CU_ASSERT_TRUE(browser_await(&web_browser,
                                     "Math.abs(heddle.view.timeline.width - "
                                     "heddle.view.timeline.canvases[0].clientWidth) <= 1"));
        web_opens("numbers");
        web_is("document.documentElement.scrollWidth <= innerWidth", "true");
    }
    browser_size(&web_browser, 390, 844);
    web_load("interleaved.html", "#tick=16");
    web_shot("schedule-narrow");
    browser_size(&web_browser, 1440, 900);
    browser_media(&web_browser, "light", "print");
    free(browser_text(&web_browser, "dispatchEvent(new Event('beforeprint'))"));
    web_shot("schedule-print");
    browser_media(&web_browser, "light", "screen");
}

/* WCAG's contrast of each pair of colours that carries text: at least 4.5. */
static void test_contrast(void)
{
    static const char least[] =
        "(() => { const style = getComputedStyle(document.documentElement);"
        "const light = (name) => { const hex = style.getPropertyValue('--' + name).trim();"
        "const parts = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)"
        ".map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);"
        "return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]; };"
        "const pairs = [['ink', 'card'], ['muted', 'card'], ['muted', 'paper'], ['accent', 'card'],"
        "['accent', 'accent-soft'], ['ink', 'accent-soft'], ['exposed', 'card'], ['hidden', "
        "'card'],"
        "['local', 'card'], ['muted', 'empty'], ...['f', 'b', 'i', 'w'].flatMap((kind) => [0, "
        "1].map("
        "(half) => [`${kind}${half}`, `${kind}${half}-ink`]))];"
        "const poor = pairs.filter(([one, other]) => { const [low, high] = [light(one), "
        "light(other)].sort((a, b) => a - b); return !((high + 0.05) / (low + 0.05) >= 4.5); });"
        "return JSON.stringify(poor); })()";

    web_load("interleaved.html", "#theme=light");
    web_is("document.documentElement.dataset.theme", "light");
    web_is(least, "[]");
    browser_key(&web_browser, "d");
    web_is("document.documentElement.dataset.theme", "dark");
    web_is(least, "[]");
    browser_media(&web_browser, "dark", "screen");
    web_load("interleaved.html", "");
    web_is("document.documentElement.dataset.theme", "dark");
    browser_media(&web_browser, "light", "screen");
}

/* Says how long frames take, and judges nothing: the machine is not ours alone.  `each` is done
   before each of nine drawings; what a browser rasters afterwards is not in it. */
static void tell_frames(const char *name, const char *each)
{
    char words[WEB_TEXT_BYTES];

    snprintf(words, sizeof words,
             "(() => { const view = heddle.view, times = []; for (let i = 0; i < 9; i++) { %s "
             "const begin = performance.now(); view.timeline.draw(); "
             "document.body.offsetHeight; times.push(performance.now() - begin); } times.sort((a, "
             "b) => a - b); return times[4].toFixed(1) + ' ms, least ' + times[0].toFixed(1); "
             "})()",
             each);
    char *text = browser_text(&web_browser, words);
    printf("\n    frame, %s: median %s", name, text != NULL ? text : "?");
    CU_ASSERT_PTR_NOT_NULL(text);
    free(text);
}

static void test_large(void)
{
    struct stat known;

    web_make("plan pipeline.schedule=interleaved_1f1b pipeline.ranks=16 pipeline.microbatches=64 "
             "--html middle.html");
    CU_ASSERT_EQUAL_FATAL(stat("middle.html", &known), 0);
    CU_ASSERT_TRUE(known.st_size < 2000000);
    web_load("middle.html", "");
    web_shows(".stats", "429 ticks");
    web_is(COUNTED, "true");
    web_shot("schedule-middle");
    web_make("plan pipeline.schedule=interleaved_1f1b pipeline.ranks=64 pipeline.microbatches=512 "
             "--html large.html");
    web_load("large.html", "#tick=1000");
    web_shows(".stats", "3,261 ticks");
    web_is(COUNTED, "true");
    web_is(PEAKS, "true");
    web_shot("schedule-large");
    tell_frames("whole, drawn anew",
                "view.timeline.layers.forEach((layer) => { layer.key = ''; });");
    tell_frames("cursor moved, whole, with its tables",
                "view.shared.tick += 7; view.refreshTables(); ");
    web_focus_grid();
    web_keys("+", 12);
    free(browser_text(&web_browser, "document.querySelector('.scroller').scrollLeft = 20000"));
    CU_ASSERT_TRUE(browser_await(&web_browser, "heddle.view.timeline.timeAt(64) > 200"));
    /* A number of frames in which each scrolls on: drawn each time, and none throws. */
    const double drawn = browser_number(
        &web_browser,
        "new Promise((done) => { const bar = document.querySelector('.scroller'), before = "
        "heddle.view.timeline.drawCount; let left = 20; const step = () => { "
        "bar.scrollLeft += 300; if (left-- > 0) { requestAnimationFrame(step); } else { "
        "done(heddle.view.timeline.drawCount - before); } }; step(); })");
    CU_ASSERT_TRUE(drawn >= 10);
    tell_frames("scrolled, near", "view.timeline.element.scrollLeft += 300;");
    tell_frames("zoomed", "view.timeline.zoom(i % 2 ? 1.5 : 1 / 1.5);");
    web_shot("schedule-large-near");
}

/* A name is text, whatever it says. */
static void test_markup(void)
{
    static const char name[] = "<svg><b>\"x'&amp;.csv";
    char words[512];

    web_make("plan pipeline.ranks=2 pipeline.microbatches=2 --csv plain.csv");
    CU_ASSERT_EQUAL_FATAL(mkdir("<", 0755), 0);
    CU_ASSERT_EQUAL_FATAL(link("plain.csv", name), 0);
    CU_ASSERT_EQUAL_FATAL(link("plain.csv", "</script><b>.csv"), 0);
    snprintf(words, sizeof words, "plan pipeline.schedule=%s --html markup.html", name);
    web_make(words);
    web_load("markup.html", "");
    snprintf(words, sizeof words,
             "document.getElementById('title').textContent.startsWith(`%s`) && "
             "document.querySelectorAll('h1 *, .subtitle *').length === 0",
             name);
    web_is(words, "true");
    web_make("plan pipeline.schedule=</script><b>.csv --html script.html");
    web_load("script.html", "");
    web_is("document.getElementById('title').textContent.startsWith('script><b>.csv') && "
           "document.getElementById('subtitle').textContent.startsWith('</script><b>.csv') && "
           "document.querySelectorAll('h1 *').length === 0 && document.scripts.length === 2",
           "true");
}

static void test_compare(void)
{
    web_make("report interleaved.html v.html -o compared.html");
    web_load("compared.html", "");
    web_shows("h1", "2 plans and runs");
    web_is("document.querySelectorAll('#compared tbody tr').length", "2");
    web_shows("#compared", "57 15.8 %");
    web_shows("#compared", "63 23.8 %");
    web_shows("#bars", "Copies, most of a rank");
    web_shot("compare-light");
    free(browser_text(&web_browser,
                      "(() => { const pick = document.getElementById('item'); pick.value = "
                      "1; pick.dispatchEvent(new Event('change')); })()"));
    web_shows("h1", "1f1b_v");
    web_shows(".stats", "63 ticks");
    web_make("plan --sweep pipeline.microbatches=4:8 --html sweep.html");
    web_load("sweep.html", "");
    web_shows("#compared", "microbatches=4");
}

/* Other shapes: halves of a backward, times that are no whole ticks, one rank alone. */
static void test_shapes(void)
{
    char words[WEB_TEXT_BYTES];

    snprintf(words, sizeof words, "plan pipeline.schedule=%s --html zbv.html",
             hd_check_source("tests/golden/schedules/peers/ZBVZeroBubble_P4_V2_m8.csv"));
    web_make(words);
    web_load("zbv.html", "#tick=10&follow=2");
    web_shows(".stats", "51 ticks");
    web_shows(".legend", "Weight gradient, stages 4");
    web_is(COUNTED, "true");
    web_is(PEAKS, "true");
    web_is(POOLS, "true");
    web_make("plan pipeline.schedule=interleaved_1f1b cost.forward=1.3 cost.transfer=.5 --timeline "
             "costed --html costed.html");
    web_load("costed.html", "#tick=10");
    web_shows(".stats", "ticks of transfers; 0 local");
    web_is(PEAKS, "true");
    /* In the page's arithmetic no pass begins before its producer's end. */
    web_is(
        "(() => { const plan = heddle.plan; for (let i = 0; i < plan.count; i++) { const before = "
        "plan.producer(i); if (before >= 0 && plan.start[i] < plan.end[before] - 1e-6) { return "
        "plan.label(i); } } return 'fine'; })()",
        "fine");
    web_make("plan pipeline.ranks=1 pipeline.microbatches=1 --html one.html");
    web_load("one.html", "");
    web_shows("h1", "1f1b, 1 rank, 1 microbatch");
    web_shows("#at-tick", "rank 0 0F0 forward 1 1");
    web_shot("schedule-one");
}

static const struct hd_check checks[] = {
    {"figure 25: tick 16, copies, slots, budget", test_interleaved},
    {"figure 26: what runs while a transfer is under way; 1f1b_v", test_windows},
    {"a microbatch is followed with the keys", test_follow},
    {"a click follows, the pointer tells", test_click},
    {"zoom keeps the cursor in sight", test_zoom},
    {"every figure has its data as a table", test_data},
    {"360 to 2560 pixels, and paper", test_widths},
    {"colours carry text in light and dark", test_contrast},
    {"16 and 64 ranks: opens, scrolls", test_large},
    {"markup in a name is text", test_markup},
    {"two plans side by side, and a sweep", test_compare},
    {"halves, costs, one rank", test_shapes},
    {"a run in real time", web_test_measured},
    {"transfers over a slow line: moving, hidden, waited for", web_test_transfers},
    {"resident waits and unknown times are shown as such", web_test_resident},
    {"a run that learns", web_test_learned},
};

int main(void)
{
    if (browser_program() == NULL) {
        return hd_check_skip("no chromium is installed");
    }
    web_work = command_work("test_web");
    mkdir(hd_check_build("tests/web"), 0755);
    char profile[COMMAND_PATH_BYTES + 16];
    snprintf(profile, sizeof profile, "%s/profile", web_work);
    if (!browser_open(&web_browser, profile)) {
        printf("chromium does not start: see %s/browser.log\n", web_work);
        browser_close(&web_browser);
        return 1;
    }
    const int code = hd_check_main("report.html in a browser", checks, HD_CHECK_COUNT(checks));
    browser_close(&web_browser);
    return code;
}

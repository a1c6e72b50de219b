/* web/runs.c - the pages of runs: real time, transfers, curves. */
#include "web/runs.h"
#include "support/check.h"
#include "web/reader.h"

#include <stdlib.h>

/* A run of the synthetic kernel: every pass is as long as [cost] says. */
void web_test_measured(void)
{
    web_make("run pipeline.schedule=interleaved_1f1b pipeline.ranks=4 pipeline.microbatches=8 "
             "kernels.name=synthetic cost.tick_us=300 train.steps=4 train.warmup_steps=0 "
             "output.directory=measured --quiet");
    web_load("measured/report.html", "");
    web_opens("measured");
    web_shows(".stats", "Step 4 3 kept");
    web_is("document.querySelectorAll('#shares tbody tr').length", "4");
    /* What the page draws is a possible past: per rank no pass begins before the one before it has
       ended, and none before its input was sent. */
    web_is("(() => { const plan = heddle.plan, times = heddle.view.measured; for (let i = 0; i < "
           "plan.count; i++) { const producer = plan.producer(i); if ((i > "
           "plan.begin[plan.rankOf[i]] && times.start[i] < times.end[i - 1]) || (producer >= 0 && "
           "times.start[i] < times.end[producer])) { return plan.label(i); } } return 'fine'; })()",
           "fine");
    /* The shares of a rank add up to the step: no part of it is below zero. */
    web_is("heddle.plan.facts.peak_copies.every((_, rank) => Object.values("
           "heddle.view.measured.shares(rank)).every((share) => share >= -1e-6))",
           "true");
    web_shows("#here", "0F0 on rank 0");
    web_focus_grid();
    browser_key(&web_browser, "ArrowRight");
    web_shows("#here", "0F1 on rank 0");
    browser_key(&web_browser, "ArrowDown");
    web_shows("#here", "on rank 1");
    web_shot("measured-light");
    web_opens("schedule");
    web_is("heddle.shared.rank", "1");
    web_opens("numbers");
    web_shows(".stats", "Bubble planned 15.8 %");
    /* Times alone: this kernel has no loss, and no curve stands in for it. */
    web_is("document.querySelectorAll('svg.chart').length", "1");
    web_make("report measured");
    web_load("measured/report.html", "#view=measured");
    web_shows(".stats", "Step 4 3 kept");
}

/* A run over a slow line, of stages long enough that it matters: what moves, and what is waited
 * for. */
void web_test_transfers(void)
{
    web_make("run pipeline.schedule=interleaved_1f1b pipeline.ranks=4 pipeline.microbatches=8 "
             "kernels.name=synthetic kernel.synthetic.boundary_bytes=1000 cost.tick_us=2000 "
             "cost.transfer=0.5 transport.name=hook_fault transport.inner=shm "
             "transport.hook_fault.bandwidth_mb=1 train.steps=3 train.warmup_steps=0 "
             "output.directory=slow --quiet");
    web_load("slow/report.html", "#view=measured");
    web_shows(".legend", "Transfer while its receiver works");
    web_shows(".legend", "Resident wait");
    web_is("heddle.view.measured.transfers().count", "112");
    web_is("heddle.view.measured.transfers().unknown", "0");
    /* Each moves for as long as the line needs, from its producer's end; its consumer begins
       later. */
    web_is("(() => { const plan = heddle.plan, times = heddle.view.measured; for (let i = 0; i < "
           "plan.count; i++) { if (plan.isRemote(i) && !(times.moveBegin[i] >= "
           "times.end[plan.producer(i)] && times.moveEnd[i] - times.moveBegin[i] >= 0.999 && "
           "times.start[i] >= times.moveEnd[i] && times.exposedMove(i) <= times.moveEnd[i] - "
           "times.moveBegin[i] + 1e-6)) { return plan.label(i); } } return 'fine'; })()",
           "fine");
    /* The page's sums are run.json's, which are means over the steps that are kept. */
    web_is(
        "(() => { const run = heddle.plan.item.run; let moved = 0, exposed = 0; for (let step = 0; "
        "step < 3; step++) { const sums = new heddle.view.measured.constructor(heddle.plan, "
        "step).transfers(); moved += "
        "sums.moved / 3000; exposed += sums.exposed / 3000; } const all = (name) => ['hidden', "
        "'exposed'].reduce((sum, way) => sum + run.handoffs[way].measured[name], 0); return "
        "Math.abs(all('transfer_seconds') - moved) < 1e-6 && "
        "Math.abs(all('exposed_seconds') - exposed) < 1e-6; })()",
        "true");
    web_focus_grid();
    browser_key(&web_browser, "ArrowDown");
    web_shows("#here", "Its input moved for");
    web_shows("#here", "planned exposed");
    web_shot("transfers-light");
    browser_media(&web_browser, "dark", "screen");
    web_load("slow/report.html", "#view=measured&theme=dark");
    web_shot("transfers-dark");
    browser_size(&web_browser, 390, 844);
    web_load("slow/report.html", "#view=measured&theme=light");
    web_is("document.documentElement.scrollWidth <= innerWidth", "true");
    web_shot("transfers-narrow");
    browser_size(&web_browser, 1440, 900);
    browser_media(&web_browser, "light", "screen");
    web_load("slow/report.html", "#view=numbers");
    web_shows(".stats", "costed 73.2 %");
    web_is("document.querySelectorAll('#transfers tbody tr').length", "3");
    web_shows("#transfers", "hidden 37 37.000 37.000 0.000");
    web_shows("#transfers", "exposed 75 75.000 45.000 30.000");
    web_shot("numbers-slow");
}

/* A resident wait, as a transport of a device would report it: what the page makes of such a
   row. */
void web_test_resident(void)
{
    web_load("slow/report.html", "#view=measured");
    web_is("(() => { const item = heddle.plan.item, row = item.trace.transfers[2][1]; row[2] = "
           "700000; row[3] = 1300000; row[4] = row[5] = -1; const times = new "
           "heddle.view.measured.constructor(heddle.plan, 2), sums = times.transfers(); "
           "heddle.view.show(); "
           "return [sums.resident.toFixed(1), sums.unknown, times.beside(0).resident.toFixed(1), "
           "times.beside(1).resident.toFixed(1)].join(); })()",
           "2.0,1,0.7,1.3");
    web_shows(".stats", "Resident wait 2.000 ms");
    web_shows(".stats", "1 unknown");
    web_shows("#shares", "rank 1");
    web_shot("transfers-resident");
}

/* A run that learns has the curve of its loss, too. */
void web_test_learned(void)
{
    web_make(
        "run kernels.name=reference model.layers=4 model.width=16 model.heads=2 model.experts=2 "
        "model.experts_per_token=1 model.expert_width=16 model.sequence=16 "
        "data.microbatch_size=1 train.steps=12 train.warmup_steps=2 output.directory=learned "
        "--quiet");
    web_load("learned/report.html", "#view=numbers");
    web_is("document.querySelectorAll('svg.chart').length", "2");
    web_shot("numbers-run");
}

/* page.js - the items of this page, the views, and their shared state. */

const VIEWS = [
    {name: "schedule", title: "Schedule", fits: () => true, open: (shared, plan) => new ScheduleView(shared, plan)},
    {name: "measured", title: "Measured", fits: (plan) => plan.item.trace !== null, open: (shared, plan) => new MeasuredView(shared, plan)},
    {name: "compare", title: "Compare", fits: (plan, plans) => plans.length > 1, open: (shared, plan, plans) => new CompareView(shared, plans)},
    {name: "numbers", title: "Numbers", fits: () => true, open: (shared, plan) => new NumbersView(shared, plan)},
];

class Page {
    constructor(items) {
        const asked = new URLSearchParams(location.hash.slice(1));
        const wanted = (name, usual) => (asked.has(name) ? Number(asked.get(name)) || 0 : usual);
        this.plans = items.map((item) => new Plan(item));
        this.place = Math.max(0, Math.min(wanted("item", 0), items.length - 1));
        this.shared = {tick: Math.max(0, wanted("tick", 0)), rank: wanted("rank", 0), stage: wanted("stage", 0), follow: wanted("follow", -1),
            step: -1, changed: () => this.remember()};
        this.name = asked.get("view") || (items.length > 1 ? "compare" : "schedule");
        this.theme = asked.get("theme") || "auto";
        this.preferred = matchMedia("(prefers-color-scheme: dark)");
        this.preferred.addEventListener("change", () => this.applyTheme());
        byId("theme").addEventListener("click", () => this.nextTheme());
        document.addEventListener("keydown", (event) => this.onKey(event));
        addEventListener("beforeprint", () => this.view.timeline && this.view.timeline.zoom(0));
        this.fillPicker();
        this.applyTheme();
        this.show();
    }

    get plan() {
        return this.plans[this.place];
    }

    fillPicker() {
        const picker = byId("item");
        picker.append(...this.plans.map((plan, place) => make("option", {value: place}, plan.item.name)));
        picker.value = this.place;
        picker.addEventListener("change", () => {
            this.place = Number(picker.value);
            this.shared.step = -1;
            this.name = this.name === "compare" ? "schedule" : this.name;
            this.show();
        });
        byId("pick-item").hidden = this.plans.length < 2;
    }

    show() {
        const views = VIEWS.filter((view) => view.fits(this.plan, this.plans));
        const chosen = views.find((view) => view.name === this.name) || views[0];
        this.name = chosen.name;
        if (this.view) {
            this.view.close();
        }
        byId("tip").hidden = true;
        this.shared.follow = this.shared.follow < this.plan.microbatchCount ? this.shared.follow : -1;
        this.view = chosen.open(this.shared, this.plan, this.plans);
        byId("view").replaceChildren(this.view.element);
        byId("view").setAttribute("aria-labelledby", "tab-" + chosen.name);
        byId("tabs").replaceChildren(...views.map((view) => make("button", {type: "button", role: "tab", id: "tab-" + view.name,
            "aria-selected": String(view === chosen), "aria-controls": "view", tabindex: view === chosen ? 0 : -1,
            onclick: () => this.choose(view.name)}, view.title)));
        this.describe(chosen);
        this.remember();
    }

    choose(name) {
        this.name = name;
        this.show();
    }

    describe(view) {
        const facts = this.plan.facts;
        const isCompared = view.name === "compare";
        const title = isCompared ? `${this.plans.length} plans and runs` : this.plan.item.name;
        const text = {drawn: "drawn with the schedule's idle ticks", asap: "as soon as possible", costed: "with the costs of the configuration"};
        byId("title").textContent = title;
        document.title = `${title} \u2013 heddle`;
        byId("subtitle").textContent = isCompared ? "side by side"
            : `${facts.schedule}, ${facts.placement} placement: ${counted(facts.ranks, "rank")}, ${counted(facts.stages, "stage")}, ${counted(facts.microbatches, "microbatch")}; ${text[facts.timeline]}`
                + (facts.notes.length > 0 ? `. Note: ${facts.notes.join("; ")}` : "");
    }

    applyTheme() {
        const isDark = this.theme === "dark" || (this.theme === "auto" && this.preferred.matches);
        document.documentElement.dataset.theme = isDark ? "dark" : "light";
        byId("theme").textContent = isDark ? "Light" : "Dark";
        palette.read();
        if (this.view && this.view.timeline) {
            this.view.timeline.invalidate();
        }
    }

    nextTheme() {
        this.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
        this.applyTheme();
        this.remember();
    }

    onKey(event) {
        if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT)$/.test(event.target.tagName)) {
            return;
        }
        if (event.key === "d") {
            this.nextTheme();
        } else if (event.target.getAttribute("role") === "tab" && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
            const tabs = [...byId("tabs").children];
            const next = (tabs.indexOf(event.target) + (event.key === "ArrowRight" ? 1 : tabs.length - 1)) % tabs.length;
            tabs[next].click();
            byId("tabs").children[next].focus();
        }
    }

    /* Keeps the view and the cursor in the address, so that the address can be shared. */
    remember() {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => {
            const {tick, rank, stage, follow} = this.shared;
            const words = new URLSearchParams({view: this.name, item: this.place, tick, rank, stage, follow});
            if (this.theme !== "auto") {
                words.set("theme", this.theme);
            }
            try {
                history.replaceState(null, "", "#" + words);
            } catch (error) {
                /* A browser may forbid this for a file; the page works without it. */
            }
        }, 300);
    }
}

function begin() {
    try {
        const items = JSON.parse(byId("data").textContent);
        window.heddle = new Page(items);
    } catch (error) {
        byId("view").replaceChildren(make("pre", {class: "problem"}, `This page cannot be shown: ${error.message}`));
        throw error;
    }
}

begin();

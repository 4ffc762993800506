// Where the page's runs come from: the page itself (a report), or the server of a run that is watched.
import { MAX_LIVE_STEPS, Run } from "./runs.js";

export class StoredSource {
  constructor(data) {
    this.data = data;
    this.runs = data.runs.map((run) => new Run(run));
    this.names = this.runs.map((run) => run.name);
  }

  async open() {}
  watch() {}
  zoom() {}
  now() {
    return this.data.time;
  }
  isLive() {
    return false;
  }
  note(formatTime) {
    return `Written by tessera report, ${formatTime(this.data.time)}.`;
  }
}

export class LiveSource {
  // onChange(): there is news to draw. onProblem(text): "" = no longer.
  constructor({ onChange, onProblem }) {
    Object.assign(this, { onChange, onProblem, runs: [], names: [], clockAhead: 0 });
  }

  // The server prepares answers in the background, and says so with status 202.
  async fetchJson(path) {
    for (;;) {
      const response = await fetch(path);
      if (!response.ok) throw new Error((await response.text()).trim() || `${path}: ${response.status}`);
      if (response.status !== 202) return response.json();
      await new Promise((resolve) => setTimeout(resolve, 60));
    }
  }

  async load(name) {
    return new Run(await this.fetchJson(`api/run?name=${encodeURIComponent(name)}`));
  }

  async open() {
    const list = await this.fetchJson("api/runs");
    this.clockAhead = list.time - Date.now() / 1000;
    this.live = list.live;
    this.names = list.runs.map((run) => run.name);
    this.runs = [await this.load(this.live)];
  }

  now() {
    return Date.now() / 1000 + this.clockAhead;
  }
  isLive(run) {
    return run.name === this.live;
  }
  note() {
    return "Read-only. Earlier runs in the same folder can be compared with this one.";
  }

  watch() {
    const run = this.runs[0];
    const events = new EventSource(`api/events?after=${run.records.last_event_id}`);
    const news = (use) => (event) => {
      use(JSON.parse(event.data));
      run.records.updated = this.now();
      this.onChange();
    };
    events.addEventListener("step", news((line) => {
      run.addStep(line);
      if (run.all.step.length > MAX_LIVE_STEPS) this.refresh(run);
    }));
    events.addEventListener("record", news((record) => {
      run.addEvent(record);
      run.version = (run.version ?? 0) + 1;
    }));
    // More was missed than the server keeps.
    events.addEventListener("reload", () => this.refresh(run));
    events.onerror = () => {
      if (run.finish) events.close();  // the program has ended, and its server with it
      else this.onProblem("The connection to the run is lost; trying again.");
    };
    events.onopen = () => this.onProblem("");
    // Without steps, time goes on; and ranks over the run are summed up by the server.
    setInterval(this.onChange, 5000);
    setInterval(() => run.finish || this.refresh(run), 60000);
  }

  async refresh(run) {
    if (run.isRefreshing) return;
    run.isRefreshing = true;
    try {
      run.replace((await this.load(run.name)).records);
      run.version = (run.version ?? 0) + 1;
      this.onChange();
    } catch (error) {
      this.onProblem(error.message);
    }
    run.isRefreshing = false;
  }

  // Asks for more steps of the range [from, to] that is shown; null = everything is shown.
  zoom(run, range) {
    clearTimeout(run.zoomTimer);
    if (range === null || !run.isThinned) {
      run.zoomed = null;
      return;
    }
    run.zoomTimer = setTimeout(async () => {
      const [from, to] = [Math.floor(range[0]), Math.ceil(range[1])];
      try {
        run.zoomed = await this.fetchJson(`api/steps?run=${encodeURIComponent(run.name)}&from=${from}&to=${to}`);
        this.onChange();
      } catch (error) {
        this.onProblem(error.message);
      }
    }, 150);
  }
}

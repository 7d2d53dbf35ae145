#!/usr/bin/env python3
"""Runs the benchmarks of wgrad and of its peers alternately on one device, compares their results, prints ratios.

    benches/peers/compare.py --device llvmpipe --peers burn-wgpu
    benches/peers/compare.py --device cpu --peers candle,torch --filter softmax,mlp
    benches/peers/compare.py --device nvidia --peers burn-vulkan,torch --programs .gpu

Each row is opened by all, its first results are compared, all warm up (pipelines, autotuning), and then they take turns.
A ratio is the peer's median time over wgrad's: above 1, wgrad is ahead. Programs that are missing are built; Burn takes
20 minutes. With --programs all are taken from a folder: kernels, step, peer-burn-vulkan and so on.
"""
import argparse
import datetime
import json
import math
import os
import queue
import shutil
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
SLOW_MS = 8000
PEERS = ["burn-vulkan", "burn-wgpu", "meganeura", "candle", "torch"]


class Program:
    """A program that answers; it is started again after it died or failed."""

    def __init__(self, name, command, env=None, patience=900):
        self.name, self.command, self.env, self.patience = name, command, env, patience
        self.process, self.title, self.device = None, name, "?"

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, **(self.env or {})})
        self.lines, self.errors = queue.Queue(), []
        threading.Thread(target=self.read, args=(self.process,), daemon=True).start()
        threading.Thread(target=self.complain, args=(self.process,), daemon=True).start()
        hello = self.answer()
        self.title, self.device = hello.get("peer", self.name), hello.get("device", hello.get("no"))

    def read(self, process):
        for line in process.stdout:
            if line.startswith("{"):
                self.lines.put(json.loads(line))
        self.lines.put({"no": f"it ended with status {process.wait()}"})

    def complain(self, process):
        for line in process.stderr:
            self.errors = (self.errors + [line.rstrip()])[-30:]

    def answer(self):
        try:
            return self.lines.get(timeout=self.patience)
        except queue.Empty:
            self.stop()
            return {"no": f"no answer in {self.patience} s"}

    def ask(self, **question):
        if self.process is None or self.process.poll() is not None:
            self.start()
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            return {"no": str(error)}
        answer = self.answer()
        if "no" in answer:
            self.stop()
        return answer

    def processor_ms(self):
        """Milliseconds that its threads have had of all processors; what of it has ended is lost."""
        total = 0
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            try:
                with open(f"/proc/{self.process.pid}/task/{task}/schedstat") as file:
                    total += int(file.read().split()[0])
            except OSError:
                pass
        return total / 1e6

    def turn(self, seconds):
        """A turn, with the processor time of a run: as many runs as blocks of equal length have."""
        if self.process is None or self.process.poll() is not None or not os.path.exists("/proc/self/task"):
            return self.ask(do="turn", seconds=seconds)
        start, before = time.monotonic(), self.processor_ms()
        answer = self.ask(do="turn", seconds=seconds)
        if "ms" in answer:
            wall = (time.monotonic() - start) * 1e3
            runs = wall * statistics.mean(1 / ms for ms in answer["ms"])
            answer["processor_ms"] = (self.processor_ms() - before) / runs
        return answer

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = None


def built(args, bench):
    """Path of one of our benchmarks."""
    if args.programs:
        return os.path.join(args.programs, bench)
    lines = subprocess.run(["cargo", "build", "--release", "-p", "wgrad-benches", "--bench", bench,
                            "--message-format=json-render-diagnostics"], cwd=TOP, stdout=subprocess.PIPE, text=True,
                           check=True).stdout.splitlines()
    paths = [json.loads(line).get("executable") for line in lines]
    return [path for path in paths if path][-1]


def peer(args, name):
    """The command that runs a peer."""
    if name == "torch":
        device = "cpu" if args.device == "cpu" or not args.gpu else "cuda"
        return [args.python, os.path.join(HERE, "torch_peer.py"), "--device", device]
    program, burn = f"peer-{name}", name.startswith("burn")
    # Burn is told to take the driver that runs on the CPU.
    which = ["cpu"] if burn and args.device == "llvmpipe" else []
    if args.programs:
        return [os.path.join(args.programs, program), *which]
    path = os.path.join(HERE, "target/release", program)
    if not os.path.exists(path):
        package = "peer-burn" if burn else program
        features = ["--features", name[5:]] if burn else []
        subprocess.run(["cargo", "build", "--release", "-p", package, *features], cwd=HERE, check=True)
        if burn:
            shutil.copy(os.path.join(HERE, "target/release", package), path)
    return [path, *which]


def difference(row, ours, theirs):
    """The largest difference of samples and means, relative to the largest number."""
    most = 0.0
    for a, b in zip(ours, theirs):
        if a["elems"] != b["elems"]:
            return math.inf
        scale = max(a["largest"], 1e-30)
        pairs = list(zip(a["samples"], b["samples"])) + [(a["mean"], b["mean"])]
        off = max(abs(x - y) / scale if x is not None and y is not None else math.inf for x, y in pairs)
        most = math.inf if math.isnan(off) else max(most, off)
    return most if theirs else math.inf


def allowed(row):
    """What two right results may differ by. Losses of a model compare whole training steps."""
    half = any(i["kind"] == "f16" for i in row["inputs"])
    model = row.get("model") or {}
    return 2e-2 if half or model.get("mixed") else 1e-3


def short(ms):
    if ms is None:
        return "–"
    return f"{ms:.0f}" if ms >= 1000 else f"{ms:.{3 - max(0, math.ceil(math.log10(max(ms, 1e-3))))}f}" if ms >= 1 else f"{ms:.4f}"


def measure(row, ours, peers, args):
    """The figures of one row: by name of the program, median and least time, difference, or why not."""
    found, running = {}, []
    first = ours.ask(do="open", row=row)
    if "no" in first:
        return {"wgrad": first}
    found["wgrad"] = {"first_ms": first["first_ms"]}
    running.append(ours)
    for program in peers:
        answer = program.ask(do="open", row=row)
        if "no" in answer:
            found[program.name] = {"no": answer["no"], "said": program.errors[-6:]}
            continue
        off = difference(row, first["results"], answer["results"])
        if not off <= allowed(row):
            found[program.name] = {"no": f"its results differ by {off:.1e}", "difference": off}
            program.ask(do="close")
            continue
        found[program.name] = {"first_ms": answer["first_ms"], "difference": off}
        running.append(program)
    times, slow = {program.name: [] for program in running}, set()
    busy = {program.name: [] for program in running}
    if len(running) > 1:
        for turn in range(args.rounds):
            # Whoever goes first, goes last the next time.
            for program in running if turn % 2 == 0 else running[::-1]:
                if program.name in times and program.name not in slow:
                    answer = program.turn(args.seconds)
                    if "no" in answer:
                        found[program.name] = answer
                        times.pop(program.name)
                    else:
                        times[program.name] += answer["ms"]
                        if "processor_ms" in answer:
                            busy[program.name].append(answer["processor_ms"])
                        # Who takes that long for one run is no nearer after four.
                        if sum(answer["ms"]) > SLOW_MS and program is not ours:
                            slow.add(program.name)
    for program in running:
        if times.get(program.name):
            ms = times[program.name]
            found[program.name] |= {"ms": statistics.median(ms), "least_ms": min(ms), "blocks": len(ms)}
            if busy[program.name]:
                found[program.name]["processor_ms"] = min(busy[program.name])
            program.ask(do="close")
    by = {"median": "ms", "least": "least_ms", "processor": "processor_ms"}[args.by]
    base = found["wgrad"].get(by)
    for figures in found.values():
        if base and figures.get(by):
            figures["ratio"] = figures[by] / base
            figures["shown_ms"] = figures[by]
    return found


def cell(figures, color):
    """21 characters: the time, and the ratio in green or red."""
    if not figures or "ratio" not in figures:
        return f"{'differs' if 'difference' in (figures or {}) else '–':>21}"
    ratio = figures["ratio"]
    text = f"{short(figures['shown_ms']):>12} {ratio:>7.2f}x"
    return f"\033[{32 if ratio >= 1 else 31}m{text}\033[0m" if color else text


def summary(rows, peers):
    lines = []
    for program in peers:
        ratios = {row["name"]: f[program.name]["ratio"] for row, f in rows if "ratio" in f.get(program.name, {})}
        if not ratios:
            lines.append(f"{program.title}: no row")
            continue
        mean = math.exp(statistics.mean(map(math.log, ratios.values())))
        behind = sorted((r, n) for n, r in ratios.items() if r < 1)
        lines.append(f"wgrad is ahead of {program.title} on {len(ratios) - len(behind)} of {len(ratios)} rows, "
                     f"{mean:.2f} times as fast (geometric mean)")
        lines += [f"    behind: {name}, {ratio:.2f}x" for ratio, name in behind]
    return "\n".join(lines)


def markdown(rows, peers, stamp):
    head = ["workload", "wgrad ms"] + [f"{p.title} ms" for p in peers]
    lines = [f"{stamp['device']}, {stamp['date']}, commit `{stamp['commit']}`:", "",
             "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row, found in rows:
        cells = [row["name"], short(found["wgrad"].get("shown_ms"))]
        for p in peers:
            figures = found.get(p.name, {})
            if "ratio" in figures:
                ratio = f"{figures['ratio']:.2f}"
                cells.append(f"{short(figures['shown_ms'])} ({ratio if figures['ratio'] >= 1 else f'**{ratio}**'})")
            else:
                cells.append("differs" if "difference" in figures else "–")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def commit():
    """WGRAD_COMMIT where there is no git."""
    try:
        said = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=TOP, capture_output=True, text=True).stdout
    except OSError:
        said = ""
    return os.environ.get("WGRAD_COMMIT") or said.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="as for the benchmarks: cpu, or part of an adapter's name")
    parser.add_argument("--peers", default="", help=f"of {', '.join(PEERS)}, separated by commas")
    parser.add_argument("--filter", default="", help="only rows whose names contain one of these, separated by commas")
    parser.add_argument("--only", choices=["kernels", "step"], help="only that benchmark")
    parser.add_argument("--set", choices=["small", "large"], help="workloads for processors or for GPUs")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (5)")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a turn (0.3)")
    parser.add_argument("--by", choices=["median", "least", "processor"], default="median",
                        help="ratios of median times, or, on a busy machine, of the least, or of what the processors "
                             "spent (the least of turns; of all cores together, so only where both run on the CPU)")
    parser.add_argument("--patience", type=float, default=900, help="seconds after which a peer is given up (900)")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds after which no row is begun")
    parser.add_argument("--captured", action="store_true", help="wgrad's steps are captured and replayed")
    parser.add_argument("--programs", help="folder that holds all programs; else they are built")
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    parser.add_argument("--json", help="file for all figures")
    parser.add_argument("--markdown", help="file for the table")
    parser.add_argument("--record", action="store_true", help="writes both into benches/record/")
    args = parser.parse_args()
    names = [name for name in args.peers.split(",") if name]
    unknown = [name for name in names if name not in PEERS]
    if unknown or not names:
        parser.error(f"--peers takes some of {', '.join(PEERS)}")
    args.gpu = args.device not in ("cpu", "llvmpipe")
    peers = [Program(name, peer(args, name), patience=args.patience) for name in names]
    options = ["--device", args.device] + (["--set", args.set] if args.set else [])
    filters = ["--filter", args.filter] if args.filter else []
    color, rows, wide, left, begin = sys.stdout.isatty(), [], 54, [], time.monotonic()
    stamp = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "commit": commit()}
    for bench in ["kernels", "step"]:
        if args.only not in (None, bench):
            continue
        path = built(args, bench)
        listed = subprocess.run([path, *options, *filters, "--list"], stdout=subprocess.PIPE, text=True, check=True)
        listed = [json.loads(line) for line in listed.stdout.splitlines() if line.startswith("{")]
        if not listed:
            continue
        serve = [path, *options, "--serve"] + (["--captured"] if args.captured and bench == "step" else [])
        ours = Program("wgrad", serve, patience=args.patience)
        for program in [ours, *peers]:
            if program.process is None:
                program.start()
        stamp["device"] = ours.device
        if not rows:
            print("\n".join(f"{p.title:<16} on {p.device}" for p in [ours, *peers]))
            print(f"\n{'workload':<{wide}} {'wgrad ms':>9}" + "".join(f"{p.name + ' ms':>15} ratio" for p in peers))
        for row in listed:
            if time.monotonic() - begin > args.within:
                left.append(row["name"])
                continue
            print(f"{row['name']:<{wide}} ", end="", flush=True)
            found = measure(row, ours, peers, args)
            rows.append((row, found))
            if "no" in found["wgrad"]:
                print(f"FAILED: {found['wgrad']['no']}")
                continue
            cells = [cell(found.get(p.name), color) for p in peers]
            print(f"{short(found['wgrad'].get('shown_ms')):>9}" + "".join(cells), flush=True)
            for p in peers:
                if "no" in found.get(p.name, {}):
                    print(f"    {p.name}: {found[p.name]['no'].splitlines()[0]}")
        ours.stop()
    for program in peers:
        program.stop()
    if left:
        print(f"\nno time was left for {', '.join(left)}")
    print("\n" + summary(rows, peers))
    stamp["peers"] = {p.name: f"{p.title} on {p.device}" for p in peers}
    text = json.dumps({**stamp, "rows": [{"name": row["name"], **found} for row, found in rows]}, indent=1) + "\n"
    table = markdown(rows, peers, stamp) + "\n```\n" + summary(rows, peers) + "\n```\n"
    outputs = [(args.json, text), (args.markdown, table)]
    if args.record:
        words = "".join(c if c.isalnum() else "-" for c in f"peers {stamp['date'][:16]} {stamp.get('device')}".lower())
        stem = os.path.join(TOP, "benches/record", "-".join(filter(None, words.split("-"))))
        outputs += [(stem + ".json", text), (stem + ".md", table)]
    for path, content in outputs:
        if path:
            with open(path, "w") as file:
                file.write(content)


if __name__ == "__main__":
    main()

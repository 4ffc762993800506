#!/usr/bin/python3
"""guide_check.py TESSERA: runs every command of docs/guide.md, in its order, on a small stand-in for what it works on.

Commands are what is indented by four spaces, fenced as `sh`, or in the text between backticks; a block of `yaml` is the file of the
command before it. STAND_INS makes them small. Commands for several machines run on this one, once for each machine; mpirun,
srun and cmake are scripts that do here what those would do. A command of the text that lacks what it works on (OPEN) has to name a
command and flags that exist.
"""
import json
import os
import pathlib
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs/guide.md"
TINY = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "vocab_size": 512}
# Replacements in every command and in demo/run.yaml.
STAND_INS = [
    (r"--vocab_size 4096", "--vocab_size 512"),
    (r"tessera init --preset 15m", "tessera init --config tiny.json"),
    (r"-size -200k", "-size -12k -name '[u-w]*'"),
    (r"((?:--)?max_steps:?) \d+", r"\1 4"),
    (r"--(eval|save|logging)_steps \d+", r"--\1_steps 2"),
    (r"((?:--)?max_length:?) 256", r"\1 64"),
    (r"--max_new_tokens \d+", "--max_new_tokens 4"),
    (r"tessera-bench train-step", "tessera-bench train-step --max_length 32 --gradient_accumulation_steps 1 --rounds 1 --seconds 0.1"),
    (r"tessera plan --memory", "tessera plan --model demo/start --memory"),
    (r"(?<![\w/])run\.yaml", "demo/run.yaml"),
    (r"--global_batch_size 64", "--global_batch_size 4"),
    (r"--nnodes 4 --node_rank", "--nnodes 2 --node_rank"),
    (r"--nnodes 2:4", "--nnodes 1:2"),
    (r"/etc/tessera/secret", "secret"),
    (r"mpirun -n 8 --map-by slot:PE=8", "mpirun -n 2"),
    (r"--num_threads \d+", "--num_threads 1"),
    (r"host0(?!:)", "127.0.0.1"),
    # Every run of the same settings would train nothing but the first time.
    (r"(launch .*|mpirun .*|srun .*)(demo/run\.yaml.*)", r"\1\2 --output_dir demo/others --dataset demo/held-out/if.h"),
]
# Parts of the text that are no whole command.
OPEN = ["tessera train --fit", "tessera export --format hf", "tessera merge", "tessera chat", "tessera plan", "tessera plan search",
        "tessera launch"]
STAND_IN_TOOLS = {
    # The ranks of Open MPI and Slurm on this machine.
    "mpirun": """
number=1
while :; do
  case $1 in
    -n) number=$2; shift 2 ;;
    -x) export "${2%%=*}=${2#*=}"; shift 2 ;;
    *) break ;;
  esac
done
export OMPI_COMM_WORLD_SIZE=$number OMPI_COMM_WORLD_LOCAL_SIZE=$number OMPI_MCA_ess_base_jobid=$$
ranks=()
for ((rank = 0; rank < number; rank++)); do
  OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_LOCAL_RANK=$rank "$@" & ranks+=($!)
done
for each in "${ranks[@]}"; do wait "$each" || exit $?; done
""",
    "srun": """
while [[ $1 == --* ]]; do
  case $1 in
    --nodes | --ntasks-per-node | --cpus-per-task) shift 2 ;;
    --hint=nomultithread) shift ;;
    *) echo "srun: unknown option $1" >&2; exit 1 ;;
  esac
done
export SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=2
export SLURM_STEP_NODELIST=127.0.0.1 SLURM_JOB_NODELIST=127.0.0.1
ranks=()
for rank in 0 1; do SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & ranks+=($!); done
for each in "${ranks[@]}"; do wait "$each" || exit $?; done
""",
    # The preset and the target exist; what it builds is the program under test.
    "cmake": f"""
while [ $# -gt 0 ]; do
  case $1 in
    --preset) grep -q "\\"name\\": \\"$2\\"" {ROOT}/CMakePresets.json || exit 1; shift 2 ;;
    --target) grep -q "add_executable($2 " {ROOT}/src/cli/CMakeLists.txt || exit 1; shift 2 ;;
    --build | --install) shift ;;
    build/release) shift ;;
    *) echo "cmake: unknown option $1" >&2; exit 1 ;;
  esac
done
""",
    "install_packages.sh": f"bash -n {ROOT}/scripts/install_packages.sh",
}


def commands_of(text):
    """The commands of a page in their order; a file as ("file", text)."""
    lines = text.split("\n")
    found, i = [], 0
    while i < len(lines):
        line = lines[i]
        if line.startswith("```"):
            end = lines.index("```", i + 1)
            body = "\n".join(lines[i + 1:end])
            if line == "```yaml":
                found.append(("file", body))
            elif line == "```sh":
                found += [("command", each) for each in joined(body)]
            i = end
        elif line.startswith("    ") and (not lines[i - 1].strip() or lines[i - 1].startswith("    ")):
            end = i
            while end < len(lines) and lines[end].startswith("    "):
                end += 1
            found += [("command", each) for each in joined("\n".join(each[4:] for each in lines[i:end]))]
            i = end - 1
        elif not line.startswith("|"):
            found += [("inline", each) for each in re.findall(r"`((?:tessera|tessera-bench|cmake) [^`]+)`", line)]
        i += 1
    return found


def joined(body):
    body = re.sub(r"\\\n\s*", "", body)
    return [re.sub(r"\s+# [A-Z].*", "", line) for line in body.split("\n") if line.strip() and not line.startswith("#")]


def small(command):
    for pattern, replacement in STAND_INS:
        command = re.sub(pattern, replacement, command)
    return command


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Guide:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        (folder / "tests").symlink_to(ROOT / "tests")
        (folder / "scripts").mkdir()
        (folder / "bin").mkdir()
        (folder / "build/release").mkdir(parents=True)
        for name in ("tessera", "tessera-bench"):
            (folder / "build/release" / name).symlink_to(pathlib.Path(program).parent / name)
        for name, text in STAND_IN_TOOLS.items():
            path = folder / ("scripts" if name.endswith(".sh") else "bin") / name
            path.write_text("#!/usr/bin/env bash\nset -euo pipefail\n" + text)
            path.chmod(0o755)
        (folder / "tiny.json").write_text(json.dumps(TINY))
        (folder / "secret").write_text("a secret of the job, long enough\n")
        (folder / "secret").chmod(stat.S_IRUSR)
        self.environment = dict(os.environ, XDG_CACHE_HOME=str(folder / "cache"), OMP_NUM_THREADS="1",
                                PATH=f"{folder}/bin:{folder}/build/release:{os.environ['PATH']}")

    def start(self, command):
        return subprocess.Popen(["bash", "-euo", "pipefail", "-c", command], cwd=self.folder, env=self.environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, command):
        nodes = re.search(r"--nnodes (?:\d+:)?(\d+) --node_rank 0 ", command)
        command = command.replace("host0:29500", f"127.0.0.1:{free_port()}")
        started = [self.start(command.replace("--node_rank 0", f"--node_rank {rank}")) for rank in range(int(nodes[1]) if nodes else 1)]
        for each in started:
            out, _ = each.communicate(timeout=300)
            if each.returncode:
                sys.exit(f"{command}\n{out[-4000:]}\nexit code {each.returncode}")

    def check_named(self, command):
        """A part of a command: the command and its flags exist."""
        words = [word for word in command.split()[1:] if not word.startswith("-")]
        flags = re.findall(r"--[a-z_0-9]+", command)
        page = subprocess.run([self.program, "help", words[0]], capture_output=True, text=True, check=False)
        if page.returncode or any(flag not in page.stdout for flag in flags):
            sys.exit(f"`{command}`: there is no such command or flag: {page.stderr}")


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-guide-"))
    num_run = num_named = 0
    try:
        guide = Guide(program, folder)
        for kind, text in commands_of(GUIDE.read_text()):
            if kind == "file":
                (folder / "demo/run.yaml").write_text(small(text + "\n"))
                guide.run("tessera train demo/run.yaml")
            elif kind == "inline" and (text in OPEN or text == "tessera train demo/run.yaml"):
                guide.check_named(text)
                num_named += 1
                continue
            elif text.startswith("export PATH="):
                continue
            elif "tessera launch train run.yaml" in text:
                guide.run(f"export PET_NNODES=1 PET_NPROC_PER_NODE=2 PET_NODE_RANK=0 PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT={free_port()}; "
                          + small(text))
            elif kind == "inline" and text == "tessera train run.yaml":
                guide.run(f"export RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT={free_port()}; " + small(text))
            else:
                guide.run(small(text))
            num_run += 1
        for made in ["demo/tuned/model.safetensors", "demo/chat.gguf", "demo/best/model.safetensors", "demo/ranks/model.safetensors",
                     "demo/others/model.safetensors"]:
            if not (folder / made).exists():
                sys.exit(f"the guide's commands made no {made}")
    finally:
        shutil.rmtree(folder)
    # The page's current numbers; a block that is no longer found must not go unnoticed.
    if num_run < 44 or num_named < 8:
        sys.exit(f"only {num_run} commands of {GUIDE} were run, {num_named} looked up")
    print(f"{num_run} commands run, {num_named} looked up")


main()

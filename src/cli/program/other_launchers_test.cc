#include "cli/program/other_launchers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"

namespace tessera {
namespace {

std::string hint(const std::string& line) { return hint_for_launcher(split(line, ' ')); }

TEST(HintForLauncher, HasTheLineThatDoesTheSame) {
  EXPECT_EQ(
      hint("accelerate launch --num_processes 8 --num_machines 2 --machine_rank 1 --main_process_ip host0 "
           "--mixed_precision bf16 --num_cpu_threads_per_process 28 sft.py --model_name_or_path m"),
      "; the same here: OMP_NUM_THREADS=28 tessera launch --nproc_per_node 4 --nnodes 2 --node_rank 1 "
      "--master_addr host0 train --model_name_or_path m, run on every node, since nodes are not started from "
      "here");
  EXPECT_EQ(hint("accelerate launch --use_deepspeed --zero_stage=3 --gradient_clipping 1.0 sft.py"),
            "; the same here: tessera train --zero_stage 3 --max_grad_norm 1.0");
  EXPECT_EQ(hint("ipexrun cpu --nnodes 2 --nprocs-per-node 2 --master-addr host0 --ccl-worker-count 4 "
                 "train.py --max_steps 3"),
            "; the same here: tessera launch --nnodes 2 --nproc_per_node 2 --master_addr host0 --node_rank "
            "NODE train "
            "--max_steps 3, run on every node, since nodes are not started from here");
  EXPECT_EQ(hint("deepspeed --num_gpus 4 --bind_cores_to_rank train.py --deepspeed ds.json"),
            "; the same here: tessera launch --nproc_per_node 4 train --deepspeed ds.json");
}

TEST(HintForLauncher, FlagsOfFsdpBecomeItsConfiguration) {
  EXPECT_EQ(hint("accelerate launch --use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward=false sft.py"),
            "; the same here: tessera train --fsdp true --fsdp_config "
            "'{\"version\":\"2\",\"reshard_after_forward\":\"false\"}'");
  EXPECT_EQ(hint("accelerate launch --fsdp_version 1 sft.py"), "; the same here: tessera train")
      << "accelerate reads it with --use_fsdp alone";
}

TEST(HintForLauncher, LeavesOutHowTheScriptIsStarted) {
  EXPECT_EQ(hint("accelerate launch -m trl.scripts.sft --dataset_name d"),
            "; the same here: tessera train --dataset_name d");
  EXPECT_EQ(hint("deepspeed --hostfile hosts train.py"),
            "; the same here: tessera train, run on every node, since nodes are not started from here");
}

TEST(HintForLauncher, NamesWhatItDoesNotKnow) {
  EXPECT_EQ(hint("accelerate launch --fp8_format E4M3 --num_processes 2 sft.py --bf16"),
            "; the same here: tessera launch --nproc_per_node 2 train --bf16; not translated: --fp8_format");
}

TEST(HintForLauncher, IsNoneForOtherCommands) {
  EXPECT_EQ(hint("trian --model m"), "");
  EXPECT_EQ(hint_for_launcher({}), "");
  EXPECT_EQ(hint("accelerate"), "; the same here: tessera train");
}

}  // namespace
}  // namespace tessera

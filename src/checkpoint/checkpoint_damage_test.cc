// Damaged checkpoints are rejected, and the error names the file.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_manifest.h"
#include "expect_error.h"
#include "formats/safetensors/shard_name.h"
#include "io/file.h"
#include "model/families/families.h"
#include "platform/crc32c.h"
#include "support/checkpoint_test_support.h"
#include "support/draws.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

uint32_t checksum_of(std::string_view text) { return crc32c(0, std::as_bytes(std::span(text))); }

class CheckpointDamage : public testing::Test {
 protected:
  CheckpointDamage() { folder_ = write(10, state_); }

  fs::path write(int64_t step, const TestState& state) const {
    TestCheckpoint test;
    test.output_dir = output_.path();
    test.step = step;
    test.world_size = 2;
    test.export_options.max_shard_bytes = 1000;
    return write_checkpoint(test, config_, layout_, state);
  }

  // Opens, reads everything and verifies.
  void use(const fs::path& folder) const {
    const CheckpointReader reader = CheckpointReader::open(folder);
    reader.verify(pool_);
    EXPECT_TRUE(load_checkpoint(reader, layout_) == state_);
  }
  void expect_refused(const std::vector<std::string>& fragments, ExitCode code = ExitCode::kBadData) const {
    expect_error(code, fragments, [&] { use(folder_); });
    const std::vector<CheckpointEntry> entries = list_checkpoints(output_.path());
    EXPECT_EQ(entries.size(), 1u);
  }

  std::vector<std::string> file_names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file()) names.push_back(fs::relative(entry.path(), folder_).native());
    }
    return names;
  }
  std::string text(const std::string& name) const { return read_text_file(folder_ / name); }
  void replace(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary | std::ios::trunc) << content;
  }

  // Changes the manifest and fixes its checksum.
  void change_manifest(const std::function<void(CheckpointManifest&)>& change) const {
    CheckpointManifest manifest = parse_manifest(text(kManifestName), "manifest");
    change(manifest);
    replace(kManifestName, write_manifest(manifest));
  }
  // Changes an index and updates its size and checksum in the manifest.
  void change_index(int rank, const std::function<void(RankIndex&)>& change) const {
    RankIndex index = parse_rank_index(text(state_index_name(rank, 2)), "index");
    change(index);
    replace_listed(state_index_name(rank, 2), write_rank_index(index));
  }
  void replace_listed(const std::string& name, const std::string& content) const {
    replace(name, content);
    change_manifest([&](CheckpointManifest& manifest) {
      for (FileRecord& file : manifest.files) {
        if (file.name != name) continue;
        file.bytes = std::ssize(content);
        file.crc32c = checksum_of(content);
      }
    });
  }

  const ModelConfig config_ = tiny_checkpoint_config();
  const ParameterLayout layout_ = parameter_layout(config_);
  const TestState state_ = random_state(layout_, DType::kBF16, 1);
  const TestFolder output_{memory_folder()};
  fs::path folder_;
  mutable ThreadPool pool_{2};
};

RankIndex::File& file_named(RankIndex& index, const std::string& name) {
  for (RankIndex::File& file : index.files) {
    if (file.name == name) return file;
  }
  ADD_FAILURE() << name;
  return index.files.front();
}

TEST_F(CheckpointDamage, AFlippedBitAnywhereIsFound) {
  use(folder_);
  for (const std::string& name : file_names()) {
    const std::string good = text(name);
    // Every byte of small files; in others the header and some bytes of every piece.
    const size_t step = (good.size() < 3000 ? 1 : 37) * sanitizer_stride();
    for (size_t at = 0; at < good.size(); at += step) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
      replace(name, bad);
      SCOPED_TRACE(fmt::format("{} byte {}", name, at));
      expect_error(ExitCode::kBadData, {folder_.native()}, [&] { use(folder_); });
      if (HasFailure()) return;
    }
    expect_refused({(folder_ / name).native()});
    replace(name, good);
  }
  use(folder_);
}

TEST_F(CheckpointDamage, DamageIsFoundBeforeItIsUsedAndOnlyWhereItIs) {
  const std::string name = state_file_name(1, 2);
  std::string bad = text(name);
  bad.back() = static_cast<char>(bad.back() ^ 4);
  replace(name, bad);
  const CheckpointReader reader = CheckpointReader::open(folder_);
  TestState found = zero_state(layout_);
  int64_t num_bad = 0;
  const StateSink sink = [&](StateKind kind, int64_t begin, std::span<const float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<size_t>(begin) + i;
      if (std::memcmp(&values[i], &state_.of(kind)[at], sizeof(float)) != 0) ++num_bad;
    }
  };
  reader.load(layout_, AdamW::kStateTensors, test_shard(layout_, 0, 2), sink, pool_);
  expect_error(ExitCode::kBadData, {(folder_ / name).native(), "expected checksum"},
               [&] { reader.load(layout_, AdamW::kStateTensors, test_shard(layout_, 1, 2), sink, pool_); });
  EXPECT_EQ(num_bad, 0);
}

TEST_F(CheckpointDamage, TruncatedMissingAndLongerFilesAreNamed) {
  for (const std::string& name : file_names()) {
    SCOPED_TRACE(name);
    const std::string good = text(name);
    const std::string path = (folder_ / name).native();
    for (const size_t size : {size_t{0}, size_t{7}, good.size() / 2, good.size() - 1}) {
      replace(name, good.substr(0, size));
      expect_refused({path});
    }
    replace(name, good + '\n');
    expect_refused({path});
    fs::remove(folder_ / name);
    expect_refused({path}, name == kManifestName ? ExitCode::kNoInput : ExitCode::kBadData);
    fs::create_directory(folder_ / name);
    expect_refused({path}, name == kManifestName ? ExitCode::kNoInput : ExitCode::kBadData);
    fs::remove(folder_ / name);
    replace(name, good);
  }
  use(folder_);
}

TEST_F(CheckpointDamage, FilesThatDoNotBelongThereAreRefusedWhereTheyWouldBeLoaded) {
  for (const char* name : {"model.safetensors", "model-00009-of-00009.safetensors", "adapter.safetensors",
                           "tessera/state-00003-of-00003.json", "tessera/notes"}) {
    replace(name, "something");
    expect_refused({(folder_ / name).native(), "not in manifest.json"});
    fs::remove(folder_ / name);
  }
  replace("README.md", "mine");
  use(folder_);
}

TEST_F(CheckpointDamage, FilesOfAnotherRankOrCheckpointAreFound) {
  const fs::path other = write(20, random_state(layout_, DType::kBF16, 2));
  for (const std::string& name : file_names()) {
    if (read_text_file(other / name) == text(name)) continue;
    SCOPED_TRACE(name);
    const std::string good = text(name);
    replace(name, read_text_file(other / name));
    expect_error(ExitCode::kBadData, {folder_.native()}, [&] {
      // A valid manifest of a different step, with equal sizes, is detected by its checksums of the indexes.
      use(folder_);
    });
    replace(name, good);
  }
  fs::remove_all(other);
  for (const auto& [a, b] : {std::pair(state_file_name(0, 2), state_file_name(1, 2)),
                             std::pair(state_index_name(0, 2), state_index_name(1, 2))}) {
    const std::string first = text(a);
    replace(a, text(b));
    replace(b, first);
    expect_refused({"tessera/state-0000"});
    const std::string second = text(a);
    replace(a, text(b));
    replace(b, second);
  }
  use(folder_);
}

TEST_F(CheckpointDamage, VersionsOfTheFutureAndOtherFormatsAreNamed) {
  const std::string manifest = text(kManifestName);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = manifest;
    changed.replace(changed.find(from), from.size(), to);
    replace(kManifestName, changed);
  };
  with("\"version\": 1", "\"version\": 2");
  expect_refused(
      {"manifest.json", "field 'version': expected at most 1, found 2", "newer program (", "use that one"});
  with("\"version\": 1", "\"version\": 0");
  expect_refused({"manifest.json", "field 'version': expected 1, found 0"});
  with("\"tessera-checkpoint\"", "\"zarr\"");
  expect_refused({"manifest.json", "field 'format': expected 'tessera-checkpoint', found \"zarr\""});
  replace(kManifestName, "[]");
  expect_refused({"manifest.json", "expected an object"});
  with("\"manifest_crc32c\": \"", "\"manifest_crc32x\": \"");
  expect_refused({"manifest.json", "manifest_crc32c"});
}

// Errors that checksums cannot detect: a buggy or hostile writer.
TEST_F(CheckpointDamage, ManifestsThatContradictThemselvesAreRefused) {
  const std::string good = text(kManifestName);
  using Manifest = CheckpointManifest;
  const std::vector<std::pair<std::function<void(Manifest&)>, std::vector<std::string>>> cases = {
      {[](Manifest& m) { m.files[0].name = "../x"; }, {"field 'files[0].name'", "found \"../x\""}},
      {[](Manifest& m) { m.files[0].name = "/etc/passwd"; }, {"field 'files[0].name'", "/etc/passwd"}},
      {[](Manifest& m) { m.files[0].name = "tessera/../x"; }, {"field 'files[0].name'"}},
      {[](Manifest& m) { m.files[0].name = "tessera/."; }, {"field 'files[0].name'"}},
      {[](Manifest& m) { m.files[0].name = ""; }, {"field 'files[0].name'"}},
      {[](Manifest& m) { m.files[1].name = m.files[0].name; }, {"appears twice"}},
      {[](Manifest& m) { m.files[0].bytes = INT64_MAX; }, {"expected 9223372036854775807 bytes"}},
      {[](Manifest& m) { m.files[0].bytes = -1; }, {"files[0].bytes"}},
      {[](Manifest& m) { m.world_size = 3; }, {"expected tessera/state-00001-of-00003.json"}},
      {[](Manifest& m) { m.world_size = 1'000'000; }, {"state-00001-of-1000000.json"}},
      {[](Manifest& m) { m.world_size = 0; }, {"field 'world_size'"}},
      {[](Manifest& m) { m.step = -1; }, {"field 'step'"}},
      {[](Manifest& m) { m.model_dtype = DType::kF16; }, {"expected F16 as manifest.json says, found BF16"}},
      {[](Manifest& m) { m.model_dtype = DType::kI8; }, {"field 'model_dtype'"}},
      {[](Manifest& m) {
         std::erase_if(m.files, [](const FileRecord& f) { return f.name == state_file_name(1, 2); });
       },
       {"state-00002-of-00002.safetensors", "not in manifest.json"}},
      {[](Manifest& m) {
         std::erase_if(m.files, [](const FileRecord& f) { return f.name == state_index_name(1, 2); });
       },
       {"state-00002-of-00002.json"}},
      {[](Manifest& m) {
         for (FileRecord& f : m.files)
           if (f.name == "config.json") f.crc32c = 0;
       },
       {"'config.json' is not in manifest.json as a file in pieces"}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    change_manifest(cases[i].first);
    expect_refused(cases[i].second);
    replace(kManifestName, good);
  }
}

TEST_F(CheckpointDamage, IndexesThatContradictThemselvesOrEachOtherAreRefused) {
  const std::string good_manifest = text(kManifestName);
  const std::string good_index = text(state_index_name(1, 2));
  const std::string state = state_file_name(1, 2);
  const std::string tensor = "model.embed_tokens.weight";
  const auto pieces_of = [&](RankIndex& index) -> std::vector<PieceRecord>& {
    return file_named(index, state).pieces;
  };
  const std::vector<std::pair<std::function<void(RankIndex&)>, std::vector<std::string>>> cases = {
      {[&](RankIndex& x) { x.rank = 0; }, {"field 'rank': expected 1, found 0"}},
      {[&](RankIndex& x) { x.world_size = 4; }, {"field 'world_size': expected 2, found 4"}},
      {[&](RankIndex& x) { x.rank = 7; }, {"field 'rank'"}},
      {[&](RankIndex& x) { file_named(x, state).name = "else.safetensors"; },
       {"'else.safetensors' is not in manifest.json"}},
      {[&](RankIndex& x) { x.files.push_back(x.files.back()); }, {"appears twice"}},
      {[&](RankIndex& x) { pieces_of(x).pop_back(); },
       {state, "pieces of all ranks: expected", "bytes, found"}},
      {[&](RankIndex& x) { pieces_of(x).erase(pieces_of(x).begin() + 1); }, {state, "a hole"}},
      {[&](RankIndex& x) { pieces_of(x)[1].size_bytes += 2; }, {"ascending without overlap"}},
      {[&](RankIndex& x) { pieces_of(x).back().size_bytes += 2; }, {state, "past the end"}},
      {[&](RankIndex& x) { pieces_of(x).back().size_bytes = INT64_MAX; }, {"].pieces["}},
      {[&](RankIndex& x) { pieces_of(x).back().size_bytes = 0; }, {"].pieces["}},
      {[&](RankIndex& x) { pieces_of(x)[1].crc32c ^= 1; }, {state, "expected checksum"}},
      {[&](RankIndex& x) {
         x.files.insert(x.files.begin(), {"generation_config.json", {{0, 8, 0}}});
       },
       {"overlaps"}},
      {[&](RankIndex& x) { x.elements[tensor][0].begin -= 1; },
       {state, "tensor 'remainder/" + tensor + "': expected I16 ["}},
      {[&](RankIndex& x) {
         x.elements[tensor][0].begin -= 1;
         x.elements[tensor][0].end -= 1;
       },
       {tensor, "hole or an overlap"}},
      {[&](RankIndex& x) { x.elements[tensor][0].end = x.elements[tensor][0].begin; },
       {"'elements." + tensor}},
      {[&](RankIndex& x) {
         x.elements[tensor] = {{100, 1 << 30}};
       },
       {"elements of " + tensor, "1073741824"}},
      {[&](RankIndex& x) {
         x.elements["no.such.weight"] = {{0, 4}};
       },
       {"no.such.weight", "found none"}},
      {[&](RankIndex& x) { x.elements.erase(tensor); }, {state, "expected", "tensors for the elements"}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    change_index(1, cases[i].first);
    expect_refused(cases[i].second);
    replace(kManifestName, good_manifest);
    replace(state_index_name(1, 2), good_index);
  }
  use(folder_);
}

// A block of codes cannot be divided.
TEST_F(CheckpointDamage, RangesOfCodesBeginWithABlock) {
  const StateTensor codes[] = {{"exp_avg", DType::kI8}, {"exp_avg_sq", DType::kU8}};
  fs::remove_all(folder_);
  TestCheckpoint test;
  test.output_dir = output_.path();
  test.world_size = 2;
  test.tensors = codes;
  folder_ = write_checkpoint(test, config_, layout_, random_state(layout_, DType::kBF16, 1, codes));
  change_index(1, [](RankIndex& index) {
    ElementRange& range = index.elements["model.embed_tokens.weight"][0];
    range = {range.begin - 1, range.end - 1};
  });
  expect_refused(
      {state_index_name(1, 2), "model.embed_tokens.weight", "multiples of 32 on, found [159, 319)"});
}

// Detected without reading weights and moments.
TEST_F(CheckpointDamage, TextsAreCheckedWhenACheckpointIsOpened) {
  for (const char* name : {"trainer_state.json", "training_args.json"}) {
    const std::string good = text(name);
    std::string bad = good;
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
    replace(name, bad);
    expect_error(ExitCode::kBadData, {(folder_ / name).native(), "expected checksum"},
                 [&] { CheckpointReader::open(folder_); });
    EXPECT_FALSE(open_newest_checkpoint(output_.path()).has_value());
    replace(name, good);
  }
}

// Two ranks that both wrote all of the state, although the model files have every piece once.
TEST_F(CheckpointDamage, StateThatTwoRanksHaveIsRefused) {
  TestCheckpoint test;
  test.output_dir = output_.path();
  test.step = 20;
  test.world_size = 2;
  const CheckpointPlan plan = test.plan(config_, layout_);
  create_checkpoint(plan);
  for (int rank = 0; rank < 2; ++rank) {
    CheckpointWriter writer(test.plan(config_, layout_, rank), everything(layout_), state_.source(), {},
                            pool_);
    writer.wait();
  }
  const fs::path path = plan.unfinished_folder() / state_index_name(1, 2);
  RankIndex index = parse_rank_index(read_text_file(path), "index");
  std::erase_if(index.files, [](const RankIndex::File& file) { return file.name == kSingleFileName; });
  std::ofstream(path, std::ios::binary | std::ios::trunc) << write_rank_index(index);
  expect_error(ExitCode::kIoError, {"state of all ranks", "overlap"},
               [&] { commit_checkpoint(plan, test_record(20)); });
}

TEST_F(CheckpointDamage, AnotherModelsCheckpointIsRefused) {
  const CheckpointReader reader = CheckpointReader::open(folder_);
  const auto load_as = [&](const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = config_;
    change(config);
    const ParameterLayout layout = parameter_layout(config);
    reader.load(
        layout, AdamW::kStateTensors, everything(layout), [](StateKind, int64_t, std::span<const float>) {},
        pool_);
  };
  expect_error(ExitCode::kBadData,
               {folder_.native(), "tensor 'model.embed_tokens.weight'", "[48, 8]", "found [40, 8]"},
               [&] { load_as([](ModelConfig& config) { config.vocab_size = 48; }); });
  expect_error(ExitCode::kBadData, {"tensor 'lm_head.weight'", "found no such tensor"},
               [&] { load_as([](ModelConfig& config) { config.tie_word_embeddings = false; }); });
  expect_error(ExitCode::kBadData, {"not part of the model to be trained"}, [&] {
    load_as([](ModelConfig& config) {
      config.num_hidden_layers = 0;
      config.sliding_window.clear();
    });
  });
}

}  // namespace
}  // namespace tessera

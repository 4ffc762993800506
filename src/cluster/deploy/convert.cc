#include "cluster/deploy/convert.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cluster/deploy/pod_arguments.h"
#include "cluster/manifests/job_manifest.h"
#include "cluster/manifests/manifest.h"

namespace tessera {
namespace {

// Kubernetes uses this for pods that do not set terminationGracePeriodSeconds.
constexpr int64_t kDefaultPodGraceSeconds = 30;

// A text whose lines are replaced, by the places that they had at first.
class Lines {
 public:
  explicit Lines(const std::string& text) : lines_(split(text, '\n')) {}

  const std::string& at(size_t line) const { return lines_[line]; }

  // Where the value ends whose name is in this line and column: at the first line that is no part of it.
  size_t end_of_field(size_t line, size_t column) const {
    size_t end = line + 1;
    for (size_t next = end; next < lines_.size(); ++next) {
      const size_t indent = lines_[next].find_first_not_of(' ');
      if (indent == std::string::npos) continue;  // whether a blank line belongs to it, the next one says
      const bool is_item = lines_[next].compare(indent, 2, "- ") == 0;
      if (indent < column || (indent == column && !is_item)) break;
      end = next + 1;
    }
    return end;
  }

  void replace(size_t begin, size_t end, std::vector<std::string> lines) {
    edits_.push_back({begin, end, std::move(lines)});
  }

  std::string text() {
    // From the last one on, so that places stay what they were; of two at one place the later one comes
    // later.
    std::ranges::stable_sort(edits_, [](const Edit& a, const Edit& b) { return a.begin < b.begin; });
    std::vector<std::string> out;
    size_t next = 0;
    for (const Edit& edit : edits_) {
      for (; next < edit.begin; ++next) out.push_back(lines_[next]);
      out.insert(out.end(), edit.lines.begin(), edit.lines.end());
      next = std::max(next, edit.end);
    }
    for (; next < lines_.size(); ++next) out.push_back(lines_[next]);
    return fmt::format("{}", fmt::join(out, "\n"));
  }

 private:
  struct Edit {
    size_t begin, end;
    std::vector<std::string> lines;
  };
  std::vector<std::string> lines_;
  std::vector<Edit> edits_;
};

// Undefined if it is not there.
YAML::Node node_at(const YAML::Node& from, const std::vector<std::string>& path) {
  YAML::Node node = from;
  for (const std::string& name : path) {
    const YAML::Node parent = node;  // const: looking for a name would add it
    if (!parent.IsMap() || !parent[name].IsDefined()) return YAML::Node(YAML::NodeType::Undefined);
    node.reset(parent[name]);
  }
  return node;
}

std::string text_of(const YAML::Node& node) {
  return node.IsDefined() && node.IsScalar() ? node.Scalar() : "";
}

std::string quoted_text(const std::string& text) { return nlohmann::json(text).dump(); }

// A job in the text.
class JobEditor {
 public:
  JobEditor(Lines* lines, const std::string& origin, const YAML::Node& job)
      : lines_(lines), origin_(origin), job_(job) {}

  std::string name() const { return text_of(at({"metadata", "name"})); }
  YAML::Node at(const std::vector<std::string>& path) const { return node_at(job_, path); }

  void set(const YAML::Node& map, const std::string& field, const std::string& value) {
    put(map, field, [&](const std::string& prefix, size_t) {
      return std::vector<std::string>{fmt::format("{}{}: {}", prefix, field, quoted_text(value))};
    });
  }
  void set(const YAML::Node& map, const std::string& field, const std::vector<std::string>& values) {
    put(map, field, [&](const std::string& prefix, size_t column) {
      std::vector<std::string> lines = {fmt::format("{}{}:", prefix, field)};
      for (const std::string& value : values)
        lines.push_back(fmt::format("{}  - {}", std::string(column, ' '), quoted_text(value)));
      return lines;
    });
  }

  [[noreturn]] void fail_job(const std::string& what) const {
    fail(ExitCode::kBadData, "{}: {} '{}' {}", origin_, text_of(at({"kind"})), printable(name()), what);
  }

 private:
  template <typename MakeLines>
  void put(const YAML::Node& map, const std::string& field, MakeLines make_lines) {
    if (!map.IsMap() || map.size() == 0 || map.Style() == YAML::EmitterStyle::Flow)
      fail_job(fmt::format(
          "has the place of its {} in braces or none: write its fields on lines of their own", field));
    for (const auto& each : map) {
      if (each.first.Scalar() != field) continue;
      const auto line = static_cast<size_t>(each.first.Mark().line);
      const auto column = static_cast<size_t>(each.first.Mark().column);
      lines_->replace(line, lines_->end_of_field(line, column),
                      make_lines(lines_->at(line).substr(0, column), column));
      return;
    }
    // A new field after the first one.
    const YAML::Mark first = map.begin()->first.Mark();
    const auto line = static_cast<size_t>(first.line);
    const auto column = static_cast<size_t>(first.column);
    const size_t place = lines_->end_of_field(line, column);
    lines_->replace(place, place, make_lines(std::string(column, ' '), column));
  }

  Lines* lines_;
  std::string origin_;
  YAML::Node job_;
};

std::vector<std::string> launch_words(const std::string& job, const Conversion& conversion) {
  const bool is_own = !conversion.runtime.empty();
  const GracePeriods grace = is_own ? longest_grace(/*spot=*/true) : grace_of_pod(kDefaultPodGraceSeconds);
  std::vector<std::string> words = {"launch", "--max_restarts=3", fmt::format("--rdzv_id={}", job),
                                    fmt::format("--termination_grace_s={}", grace.launch_s)};
  if (is_own) words.emplace_back("--under_controller");
  words.insert(words.end(), {"train", fmt::format("--grace_period_s={}", grace.run_s)});
  return words;
}

std::vector<std::string> with_arguments(std::vector<std::string> words, const Conversion& conversion) {
  words.insert(words.end(), conversion.train_arguments.begin(), conversion.train_arguments.end());
  for (std::string& word : words) word = without_references(word);
  return words;
}

bool has_output_folder(const Conversion& conversion) {
  return std::ranges::any_of(conversion.train_arguments,
                             [](const std::string& word) { return word.starts_with("--output_dir="); });
}

void convert_train_job(JobEditor job, Conversion conversion) {
  const YAML::Node trainer = job.at({"spec", "trainer"});
  if (!trainer.IsDefined()) job.fail_job("has no spec.trainer, without which its pods get no PET_ variables");
  if (!has_output_folder(conversion))
    conversion.train_arguments.push_back(fmt::format("--output_dir={}/runs/{}", kDataMount, job.name()));
  job.set(trainer, "image", conversion.image);
  job.set(trainer, "command", std::vector<std::string>{"tessera"});
  job.set(trainer, "args", with_arguments(launch_words(job.name(), conversion), conversion));
  if (conversion.runtime.empty()) return;
  const YAML::Node runtime = job.at({"spec", "runtimeRef"});
  if (!runtime.IsDefined()) job.fail_job("has no spec.runtimeRef");
  job.set(runtime, "name", conversion.runtime);
  if (job.at({"spec", "runtimeRef", "kind"}).IsDefined()) job.set(runtime, "kind", "ClusterTrainingRuntime");
}

// The operator gives each pod RANK, WORLD_SIZE and the address of the master: one rank a pod.
void convert_pytorch_job(JobEditor job, const Conversion& conversion) {
  if (!job.at({"spec", "pytorchReplicaSpecs", "Master"}).IsDefined())
    job.fail_job("has no Master, whose address the ranks need");
  const std::string ranks = text_of(job.at({"spec", "nprocPerNode"}));
  if (parse_integer(ranks).value_or(1) > 1) {
    job.fail_job(
        fmt::format("has nprocPerNode {}: expected 1 or none, since its pods are ranks; `tessera deploy "
                    "kubernetes` writes jobs with several ranks a pod",
                    ranks));
  }
  if (!has_output_folder(conversion))
    job.fail_job("needs --output_dir: a folder on a volume that its pods mount");
  const GracePeriods grace = grace_of_pod(kDefaultPodGraceSeconds);
  const std::vector<std::string> words =
      with_arguments({"train", fmt::format("--grace_period_s={}", grace.run_s)}, conversion);
  for (const auto& replica : job.at({"spec", "pytorchReplicaSpecs"})) {
    const YAML::Node containers = node_at(replica.second, {"template", "spec", "containers"});
    if (!containers.IsDefined() || !containers.IsSequence()) job.fail_job("has pods without containers");
    for (const YAML::Node& container : containers) {
      // By this name the operator knows it, too.
      if (text_of(node_at(container, {"name"})) != "pytorch") continue;
      job.set(container, "image", conversion.image);
      job.set(container, "command", std::vector<std::string>{"tessera"});
      job.set(container, "args", words);
    }
  }
}

}  // namespace

std::vector<std::string> converted_arguments(const std::vector<const Flag*>& given, bool has_runtime) {
  const bool has_output =
      std::ranges::any_of(given, [](const Flag* flag) { return flag->name == "output_dir"; });
  if (!has_output && !has_runtime) {
    fail(ExitCode::kUsage,
         "--output_dir is missing: a folder on a volume that all pods mount; with --runtime tessera they "
         "have one at {} "
         "(tessera deploy runtime)",
         kDataMount);
  }
  std::vector<std::string> words = given_words(given);
  const auto add_default = [&](const char* flag, const char* value) {
    if (std::ranges::none_of(given, [&](const Flag* each) { return each->name == flag; }))
      words.push_back(fmt::format("--{}={}", flag, value));
  };
  add_default("resume_from_checkpoint", "auto");
  // The runtime's probes and the PodMonitor ask there.
  if (has_runtime) {
    add_default("metrics_port", "9400");
    add_default("metrics_host", "0.0.0.0");
  }
  return words;
}

std::string convert_jobs(const std::string& text, const std::string& origin, const Conversion& conversion) {
  // Its limits and errors are those of all manifests; yaml-cpp's nodes know the places of fields.
  parse_manifests(text, origin);
  Lines lines(text);
  int64_t num_jobs = 0;
  for (const YAML::Node& document : YAML::LoadAll(text)) {
    const std::string kind = text_of(node_at(document, {"kind"}));
    const JobEditor job(&lines, origin, document);
    if (kind == "TrainJob") convert_train_job(job, conversion);
    if (kind == "PyTorchJob") convert_pytorch_job(job, conversion);
    num_jobs += kind == "TrainJob" || kind == "PyTorchJob" ? 1 : 0;
  }
  if (num_jobs == 0) fail(ExitCode::kBadData, "{}: expected a TrainJob or PyTorchJob, found none", origin);
  return lines.text();
}

}  // namespace tessera

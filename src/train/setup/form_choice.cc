#include "train/setup/form_choice.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "comm/first_failure.h"
#include "forecast/time/measured_costs.h"
#include "report/run_phase.h"
#include "settings/derived.h"
#include "train/setup/run_planning.h"

namespace tessera {

FitRequest fit_request(const RunInputs& inputs, const RunSpec& spec, const MachineResources& machine) {
  FitRequest request(spec);
  request.config = inputs.model->config();
  request.batch = inputs.batch;
  request.data = inputs.lengths;
  request.mean_row_tokens =
      std::max<int64_t>(1, inputs.plan.num_tokens / std::max<int64_t>(1, inputs.plan.num_rows));
  request.machine = machine;
  request.num_threads = inputs.pool.num_threads();
  std::optional<double> tflops;
  if (inputs.plan.peak) tflops = inputs.plan.peak->tflops / inputs.world().num_nodes;
  request.rates = rates_of_this_processor(tflops, inputs.pool.num_threads() * inputs.world().local_world_size,
                                          inputs.model->dtype());
  const std::filesystem::path folder =
      spec.placement.offload_dir.empty() ? spec.output_dir : spec.placement.offload_dir;
  request.free_disk_bytes = free_disk_bytes(folder);
  if (spec.placement.fit_disk_bytes) {
    request.free_disk_bytes = std::min(request.free_disk_bytes, *spec.placement.fit_disk_bytes);
  }
  request.holds_model = share_disk(folder, spec.output_dir);
  return request;
}

namespace {

// Collective: the fitting form of a run with these settings.
RunForm choose_form(RunInputs& inputs, const RunSpec& asked) {
  const OpLabel label = {"form of the run"};
  const PlacementSpec& placement = asked.placement;
  // First: the memory of its threads stays with the process.
  if (inputs.is_root()) inputs.disk_rate = try_disk_rate(placement.offload_dir, placement.transfers);
  const MachineResources machine = machine_resources(inputs);
  const int64_t disk_bytes = -inputs.comm.max(-free_disk_bytes(placement.offload_dir), label);
  FitCandidate candidate;
  const std::optional<Error> error = outside_error([&] {
    if (!inputs.is_root()) return;
    FitRequest request = fit_request(inputs, asked, machine);
    if (inputs.disk_rate) request.rates.disk_gb_per_s = inputs.disk_rate->gb_per_s();
    request.free_disk_bytes = std::min(request.free_disk_bytes, disk_bytes);
    const FitOptions options = fit_options(request);
    if (!options.best) {
      fail(ExitCode::kBadConfig, "fit: {}", fit_refusal(options, lora_fit_options(request)));
    }
    candidate = options.all[*options.taken()].candidate;
    log_info("fit: {}", choice_text(options));
  });
  if (const auto told = first_error(inputs.comm, error, label)) fail(told->code, "{}", told->message);
  candidate = inputs.comm.broadcast(candidate, 0, label);
  return {with_candidate(asked, candidate, inputs.world().world_size, /*fit=*/true), machine};
}

}  // namespace

RunForm form_of_run(RunInputs& inputs) {
  if (!inputs.asked.placement.fit) return {inputs.asked, machine_resources(inputs)};
  mark_phase(inputs.comm, "choosing the form of the run", 1);
  const PatientScope patience(inputs.comm);
  const RunResume& resume = *inputs.resume;
  RunForm form = choose_form(
      inputs, resume ? continued(inputs.asked, resume.record().arguments, resume.checkpoint_parent().string())
                     : inputs.asked);
  inputs.set_base_quantization(base_quantization_of(form.spec.base));
  inputs.record.arguments = training_arguments(form.spec);
  return form;
}

}  // namespace tessera

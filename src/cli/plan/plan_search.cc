#include "cli/plan/plan_search.h"

#include "base/error.h"
#include "base/log.h"
#include "cli/terminal/terminal.h"
#include "forecast/instances/search_picture.h"
#include "io/file.h"

namespace tessera {

void search_machines(const PlanSearch& search, const PlanRequest& request, const FlagTable& table) {
  request.check_device_flags(table);
  const ModelConfig config = request.model_config(table);
  SearchOptions options =
      asked_options(request.given.sharding, request.given.placement, table.is_set("gradient_checkpointing"));
  options.max_nodes = static_cast<int>(search.max_nodes);
  if (table.is_set("nnodes")) options.num_nodes = static_cast<int>(request.num_nodes);
  if (table.is_set("nproc_per_node")) options.local_world_size = static_cast<int>(request.local_world_size);
  set_log_level(LogLevel::kError);
  const RunSpec spec = searched_spec(table, request.given, &options);
  set_log_level(spec.reporting.lowest_log_level());
  const std::vector<Instance> catalogue =
      rentable_instances(plan_catalogue(request.machine.catalogue), request.is_on_device(), search.instances);
  const SearchResult result =
      search_instances(spec, config, request.job_or_assumed(spec, config, 1), catalogue, options);
  const std::optional<size_t> best = best_of(result, search.view);
  const bool has_model = request.preset.empty();
  const std::string command = !best ? ""
                                    : launch_command(result.combinations[*best].layout, result.step_rows,
                                                     request.given_flags, has_model ? "DIR" : "MODEL");
  const std::string init =
      has_model ? ""
                : fmt::format("tessera init --preset {} --tokenizer DIR --output MODEL\n", request.preset);
  if (!search.plot.empty()) write_text_file(search.plot, search_picture(result, search.view));
  write_output(request.json ? search_json(result, search.view, command)
                            : search_text(result, search.view, spec, config, init + command));
  flush_output();
  if (const std::string why = why_nothing_fits(result, search.view); !why.empty())
    fail(ExitCode::kBadConfig, "{}", why);
}

namespace {

constexpr Word<SearchOrder> kOrders[] = {
    {"pareto", SearchOrder::kPareto}, {"price", SearchOrder::kPrice}, {"time", SearchOrder::kTime}};

class PlanSearchCommand : public PlanningCommand {
 public:
  std::string name() const override { return "plan search"; }

  void declare_flags(FlagTable* table) override {
    declare_run(table);
    table->begin_section("Search");
    declare(table, "instances", &search_.instances);
    declare(table, "max_nodes", &search_.max_nodes);
    declare_ranks(table);
    declare(table, "sort", &search_.view.order, kOrders);
    declare(table, "top", &search_.view.top);
    declare(table, "max_hours", &search_.view.max_hours);
    declare(table, "max_price", &search_.view.max_price);
    declare(table, "spot", &search_.view.spot);
    declare(table, "plot", &search_.plot);
  }

  void run(FlagTable* table) override {
    set_log_level(request_.given.reporting.lowest_log_level());
    search_machines(search_, request_, *table);
  }

 private:
  PlanSearch search_;
};

}  // namespace

std::unique_ptr<Command> make_plan_search_command() { return std::make_unique<PlanSearchCommand>(); }

}  // namespace tessera

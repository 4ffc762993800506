#include "base/embedded_text.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

std::string_view take_until(std::string_view* text, char end) {
  const size_t size = std::min(text->find(end), text->size());
  const std::string_view part = text->substr(0, size);
  text->remove_prefix(std::min(size + 1, text->size()));
  return part;
}

}  // namespace

std::vector<std::vector<std::string_view>> read_cells(std::string_view file, std::string_view text,
                                                      size_t num_columns) {
  std::vector<std::vector<std::string_view>> rows;
  for (int64_t line = 1; !text.empty(); ++line) {
    std::string_view rest = take_until(&text, '\n');
    if (rest.empty() || rest.starts_with('#')) continue;
    std::vector<std::string_view> cells;
    while (!rest.empty()) cells.push_back(take_until(&rest, '\t'));
    if (cells.size() != num_columns || std::ranges::count(cells, "") > 0) {
      fail(ExitCode::kInternal, "{}.tsv:{}: expected {} columns separated by tabs, '-' for nothing, found {}",
           file, line, num_columns, cells.size());
    }
    std::ranges::replace(cells, "-", "");
    rows.push_back(std::move(cells));
  }
  return rows;
}

}  // namespace tessera

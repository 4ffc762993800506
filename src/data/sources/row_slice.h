// A part of a source's rows, as the datasets library writes it: train[:1000], train[10%:20%], train[-5:].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tessera {

struct RowSlice {
  std::optional<int64_t> from;  // unset: the first row; below 0: counted from the end
  std::optional<int64_t> to;    // the row after the last one
  bool is_percent = false;
  bool operator==(const RowSlice&) const = default;

  // The rows [begin, end) of `num_rows`; a share of them is rounded to the nearest row, halves to even.
  std::pair<int64_t, int64_t> resolve(int64_t num_rows) const;
};

// "[10%:20%]"; nullopt if it is none.
std::optional<RowSlice> parse_row_slice(std::string_view text);

}  // namespace tessera

// Values of leaf columns as a row has them.
#pragma once

#include <string>

#include "base/value.h"
#include "formats/parquet/metadata.h"
#include "formats/parquet/value_decoders.h"

namespace tessera::parquet {

class LeafConverter {
 public:
  explicit LeafConverter(const SchemaElement& element);

  // Why values of this type cannot be read; empty if they can.
  const std::string& problem() const { return problem_; }
  // Dates, times and decimals become text as Python's str() writes them: "2024-02-29 12:34:56.789000+00:00".
  // JSON becomes the value it encodes. Strings that are not valid UTF-8, or not JSON, give null and set
  // `bad_value` to the reason; bytes that no annotation calls a string are text if they are UTF-8, else an
  // object with the first of them. An unsigned integer above 2^63 - 1 becomes a float64, as in JSON.
  Value convert(const RawValue& raw, std::string* bad_value) const;

 private:
  enum class Form {
    kBoolean,
    kInteger,
    kUint32,
    kUint64,
    kFloat,
    kDouble,
    kFloat16,
    kString,
    kJson,
    kUuid,
    kDate,
    kTime,
    kTimestamp,
    kInt96,
    kDecimal,
  };
  static Form form_of(const SchemaElement& element);

  SchemaElement element_;
  Form form_ = Form::kString;
  std::string problem_;
};

}  // namespace tessera::parquet

// The `attribute` argument of filters: "name", "a.b.0", an index; for `sort` several with commas between.
#pragma once

#include <vector>

#include "jinja/values/rendering.h"

namespace tessera::jinja {

class AttributeGetter {
 public:
  // `attribute` may be missing or none: the value itself. Missing `default_value`: undefined stays undefined.
  AttributeGetter(Rendering& r, const Datum& attribute, bool ignore_case = false,
                  const Datum& default_value = {});
  Datum operator()(const Datum& value) const;

 private:
  Rendering& r_;
  bool ignore_case_;
  Datum default_value_;
  std::vector<Datum> path_;
};

}  // namespace tessera::jinja

// What may be written to a terminal, by the environment.
#pragma once

namespace tessera {

// No escape sequence at all with TERM=dumb.
bool terminal_takes_escapes();
// Neither colours where NO_COLOR is set and not empty (https://no-color.org).
bool terminal_takes_colours();

}  // namespace tessera

// What may be written to a terminal, according to the environment.
#pragma once

namespace tessera {

// False with TERM=dumb, which takes no escape sequences at all.
bool terminal_takes_escapes();
// Also false if NO_COLOR is set and not empty (https://no-color.org).
bool terminal_takes_colours();

}  // namespace tessera

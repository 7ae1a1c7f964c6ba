#pragma once

namespace trnx {

// Registers the fallbacks of convolution_overrideable and convolution_backward_overrideable.
void register_convolution();

} // namespace trnx

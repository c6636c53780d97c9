#pragma once

namespace lowbit {

/// Gives what the C library keeps of freed memory back to the system, where there is a call for it. A loaded model
/// leaves tens of megabytes: texts of its file and of its tokenizer, tensors before they were laid out. Takes
/// milliseconds.
void give_back_freed_memory();

}  // namespace lowbit

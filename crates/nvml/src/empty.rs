//! A library with nothing in it: linking against it makes gpurec-nvml need the library of its name. In: nothing. Out: nothing.

#![no_std]

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

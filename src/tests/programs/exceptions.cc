// exceptions: throws and catches, through frames and again, in threads too. In: nothing. Out: "called", and the exit
// status, 0 if all went as it should.
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

static int unwound;

struct Guard {
	~Guard() { unwound++; }
};

static void throws(int n)
{
	Guard guard;

	if (n == 0)
		throw std::runtime_error("thrown");
	throws(n - 1);
}

static bool catches(int n)
{
	try {
		try {
			throws(n);
		} catch (const std::runtime_error &) {
			throw;
		}
	} catch (const std::exception &caught) {
		std::exception_ptr kept = std::current_exception();
		try {
			std::rethrow_exception(kept);
		} catch (const std::exception &again) {
			return std::string(again.what()) == "thrown";
		}
	}
	return false;
}

int main()
{
	bool right = true;

	for (int i = 0; i < 20; i++) {
		right &= catches(3);
		std::thread([&right] { right &= catches(5); }).join();
	}
	if (!right || unwound != 20 * (4 + 6))
		return 9;
	std::puts("called");
	return 0;
}

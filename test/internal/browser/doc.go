// Package browser drives Debian's Chromium for tests, over its own protocol (the DevTools protocol) and a pair of
// pipes.
//
// Life cycle: Start runs a browser until the test ends. Each Tab collects what the browser complains of: errors,
// refused sources and dialogs, and which addresses it asks for.
package browser

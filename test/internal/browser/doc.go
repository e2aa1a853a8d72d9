// Package browser drives Debian's Chromium for tests, over its own protocol (the DevTools protocol) and a pair of
// pipes.
//
// Life cycle: Start runs a browser until the test ends. Each Tab collects the browser's complaints, which are
// errors, refused sources and dialogs, and the addresses that it requests.
package browser

// Package recording keeps the calls of a CSI driver in a file for bug reports, and replays such a file: it gives the
// driver's answers.
//
// The file has one JSON object in each line: a Header, and then the calls as they were traced, without secrets. A
// Player returns the recorded answers to a request, in the same order, and repeats the last one.
package recording

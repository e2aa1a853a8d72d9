// Package retry says what is known of a call that failed and is repeated: which attempt it was, and when the next one
// begins. The code that repeats the call writes that on the event of the failure, and explanations read it there.
//
// Life cycle: none; these are pure functions.
package retry

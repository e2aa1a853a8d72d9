package volume

// Answer is how a call of a driver ended, as the facts that decisions judge.
type Answer struct {
	// Outcome says what is known of the call's effect.
	Outcome Outcome
	// Code is the name of the driver's gRPC code, and Number the code itself. They are empty when the driver was not
	// called: the error is this program's own or the API server's.
	Code   string
	Number int32
	// Text is the error as one short line without secrets; empty when there is none.
	Text string
}

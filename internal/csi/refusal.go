package csi

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Errors that are made here and not by a driver.
var (
	// ErrName says that CSI does not allow the driver's name. It is final.
	ErrName = errors.New("driver's name is not usable")
	// ErrOtherDriver says that a driver with another name responds. It ends when the registered driver returns.
	ErrOtherDriver = errors.New("another driver answers at this socket")
	// ErrAnswer says that the driver's answer is unusable. The call may have taken effect; it may be repeated.
	ErrAnswer = errors.New("the driver's answer breaks the CSI specification")
	// ErrHeld says that the function of WithHold did not allow the call, so the driver was not
	// called. It may be repeated.
	ErrHeld = errors.New("the driver was not called")
	// ErrID says that an id has control characters, so no driver can have returned it. It is final.
	ErrID = errors.New("id is not usable")
	// ErrTerm says that the term of Within is over, so the driver was not called. The holder of the next term may call it.
	ErrTerm = errors.New("the driver is no longer called from here")
	// ErrBusy says that the call timed out while it waited for an earlier call for the volume. It
	// may be repeated.
	ErrBusy = errors.New("an earlier call for the volume has not ended yet")
	// ErrPlanted says that this failure was planted for a drill or a test. The code says what became of the call.
	ErrPlanted = errors.New("this fault is planted")
)

// refusal is an error that was made here and not by the driver. It is also a gRPC status, which lets OutcomeOf handle
// both. Its text contains nothing of the request.
type refusal struct {
	code   codes.Code
	reason error
	text   string
}

func refuse(code codes.Code, reason error, text string) error {
	return &refusal{code: code, reason: reason, text: text}
}

// Planted returns the error of a call that fails because a fault was planted.
func Planted(code codes.Code, text string) error { return refuse(code, ErrPlanted, text) }

// Error returns the reason and, if there are any, details.
func (r *refusal) Error() string {
	if r.text == "" {
		return r.reason.Error()
	}
	return r.reason.Error() + ": " + r.text
}

// Unwrap returns the reason.
func (r *refusal) Unwrap() error { return r.reason }

// GRPCStatus returns the error as a gRPC status; package status calls it.
func (r *refusal) GRPCStatus() *status.Status { return status.New(r.code, r.Error()) }

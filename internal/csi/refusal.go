package csi

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reasons why a driver is not called, or its answer not believed.
var (
	// ErrName is final: the driver must get another name.
	ErrName = errors.New("driver's name is not usable")
	// ErrOther may go away when the registered driver comes back.
	ErrOther = errors.New("another driver answers at this socket")
	// ErrAnswer comes after the call had its effect, or not: it may be repeated.
	ErrAnswer = errors.New("the driver's answer breaks the CSI specification")
	// ErrHeld says that nothing may be taken away now; it may be repeated.
	ErrHeld = errors.New("the driver was not called")
	// ErrID is final: the driver cannot have given such an id.
	ErrID = errors.New("id is not usable")
	// ErrBusy comes when the time ran out before an earlier call for the volume
	// ended; it may be repeated.
	ErrBusy = errors.New("an earlier call for the volume has not ended yet")
)

// refusal is an error that was made here and not by the driver. It is a gRPC
// status as well, so that one rule serves both. Its text holds nothing of the
// request.
type refusal struct {
	code   codes.Code
	reason error
	text   string
}

func refuse(code codes.Code, reason error, text string) error {
	return &refusal{code: code, reason: reason, text: text}
}

// Error tells the reason, and the particulars if there are any.
func (r *refusal) Error() string {
	if r.text == "" {
		return r.reason.Error()
	}
	return r.reason.Error() + ": " + r.text
}

// Unwrap returns the reason.
func (r *refusal) Unwrap() error { return r.reason }

// GRPCStatus makes status.Code and its kind see the code.
func (r *refusal) GRPCStatus() *status.Status { return status.New(r.code, r.Error()) }

package csi

import (
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"volplane.dev/volplane/internal/volume"
)

// Up to CSI 1.12, drivers report the condition of a volume in fields of type VolumeCondition, and announce them with a
// capability. CSI 1.13 removed both and reserved their numbers, so its messages have them as unknown fields.
const (
	controllerVolumeCondition = csipb.ControllerServiceCapability_RPC_Type(11)
	nodeVolumeCondition       = csipb.NodeServiceCapability_RPC_Type(4)
	// fieldCondition is the number of the field in each message that had it; the other two are numbers of its own fields.
	fieldCondition = 2
	fieldAbnormal  = 1
	fieldMessage   = 2
)

// ConditionOf returns what a driver of CSI up to 1.12 says about a volume, in the form of later drivers: an abnormal
// volume is degraded, because a condition does not say how much of it can still be used. m is an answer of
// NodeGetVolumeStats, or the status of a volume in an answer of ControllerGetVolume or ListVolumes. reported is false
// if there is no condition, or if it cannot be read.
func ConditionOf(m proto.Message) (problems []*csipb.VolumeHealth_VolumeHealthEntry, reported bool) {
	c, reported := conditionIn(m.ProtoReflect().GetUnknown())
	if !c.abnormal {
		return nil, reported
	}
	return []*csipb.VolumeHealth_VolumeHealthEntry{{
		Status: csipb.VolumeHealthErrorType_DEGRADED, Reason: string(volume.ReasonUnhealthy), Message: c.message,
	}}, reported
}

// condition is a VolumeCondition.
type condition struct {
	abnormal bool
	message  string
}

// conditionIn returns the condition in the unknown fields of a message, if there is one.
func conditionIn(unknown protoreflect.RawFields) (c condition, reported bool) {
	readable := eachField(unknown, func(number protowire.Number, kind protowire.Type, value []byte) bool {
		if number != fieldCondition || kind != protowire.BytesType {
			return true
		}
		reported = true
		inner, _ := protowire.ConsumeBytes(value)
		return eachField(inner, c.set)
	})
	if !reported || !readable {
		return condition{}, false
	}
	if n := len(c.message); n > maxText {
		c.message = fmt.Sprintf("(a message of %d bytes)", n)
	}
	return c, true
}

// set sets one field. As in any message, the last value of a field counts.
func (c *condition) set(number protowire.Number, kind protowire.Type, value []byte) bool {
	switch {
	case number == fieldAbnormal && kind == protowire.VarintType:
		n, _ := protowire.ConsumeVarint(value)
		c.abnormal = protowire.DecodeBool(n)
	case number == fieldMessage && kind == protowire.BytesType:
		text, _ := protowire.ConsumeBytes(value)
		c.message = string(text)
	}
	return true
}

// eachField calls visit with the fields of a message, whose values can be read, until it returns false. It says whether
// it reached the end.
func eachField(
	message []byte, visit func(number protowire.Number, kind protowire.Type, value []byte) bool,
) (complete bool) {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return false
		}
		size := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if size < 0 || !visit(number, kind, message[tag:tag+size]) {
			return false
		}
		message = message[tag+size:]
	}
	return true
}

// hideInCondition removes secrets from the condition in an answer about one volume, and with them all other unknown
// fields, which nothing reads.
func hideInCondition(answer any, hide func(string) string) {
	var m protoreflect.Message
	switch r := answer.(type) {
	case *csipb.NodeGetVolumeStatsResponse:
		m = r.ProtoReflect()
	case *csipb.ControllerGetVolumeResponse:
		m = r.GetStatus().ProtoReflect()
	default:
		return
	}
	if c, reported := conditionIn(m.GetUnknown()); reported {
		c.message = hide(c.message)
		m.SetUnknown(c.field())
	}
}

// field returns the condition as a field of a message.
func (c condition) field() protoreflect.RawFields {
	var inner []byte
	inner = protowire.AppendTag(inner, fieldAbnormal, protowire.VarintType)
	inner = protowire.AppendVarint(inner, protowire.EncodeBool(c.abnormal))
	inner = protowire.AppendTag(inner, fieldMessage, protowire.BytesType)
	inner = protowire.AppendString(inner, c.message)
	return protowire.AppendBytes(protowire.AppendTag(nil, fieldCondition, protowire.BytesType), inner)
}

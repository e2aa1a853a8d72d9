package csi

import (
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"pgregory.net/rapid"
)

// TestBlockOrder: whatever a driver answers, the accepted blocks go forwards, do not overlap and lie within the volume
// and the request, so they end.
func TestBlockOrder(t *testing.T) {
	t.Parallel()
	// These numbers are close to each other, and some at the limits.
	number := rapid.OneOf(rapid.Int64Range(-2, 40), rapid.SampledFrom([]int64{-1 << 63, 1<<63 - 1, 1 << 62}))
	rapid.Check(t, func(t *rapid.T) {
		from, capacity := rapid.Int64Range(0, 10).Draw(t, "from"), number.Draw(t, "capacity")
		most := rapid.Int32Range(0, 3).Draw(t, "most")
		order := NewBlockOrder(from, most)
		end, empty := int64(0), 0
		for range rapid.IntRange(1, 20).Draw(t, "answers") {
			a := &csipb.GetMetadataAllocatedResponse{
				BlockMetadataType: csipb.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: capacity,
			}
			for range rapid.IntRange(0, 4).Draw(t, "blocks") {
				a.BlockMetadata = append(a.BlockMetadata, &csipb.BlockMetadata{
					ByteOffset: number.Draw(t, "offset"), SizeBytes: number.Draw(t, "size"),
				})
			}
			if order.Problem(a) != "" {
				return
			}
			if len(a.GetBlockMetadata()) == 0 {
				empty++
			}
			if most > 0 && len(a.GetBlockMetadata()) > int(most) {
				t.Fatalf("%d blocks at a time", len(a.GetBlockMetadata()))
			}
			for _, b := range a.GetBlockMetadata() {
				end = follows(t, b, end, from, capacity)
			}
			if order.End != end || empty > mostEmpty {
				t.Fatalf("the end is %d, want %d", order.End, end)
			}
		}
	})
}

// follows returns the end of a block, which begins at or after the end of the one before it.
func follows(t *rapid.T, b *csipb.BlockMetadata, end, from, capacity int64) int64 {
	at, size := b.GetByteOffset(), b.GetSizeBytes()
	if at < end || size <= 0 || at+size < at || at+size > capacity || at+size <= from {
		t.Fatalf("%d+%d after %d, of %d from %d", at, size, end, capacity, from)
	}
	return at + size
}

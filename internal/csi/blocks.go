package csi

import (
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// mostEmpty is how many answers of a stream may have no block: such answers make no progress.
const mostEmpty = 1000

// BlockAnswer is one answer of a stream of the snapshot metadata service.
type BlockAnswer interface {
	GetBlockMetadataType() csipb.BlockMetadataType
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csipb.BlockMetadata
}

// BlockOrder judges the answers of a stream one by one: blocks go forwards, do not overlap, lie within the volume and
// the request, and the answers agree about the volume. So every stream ends, and none of it has to be kept in memory.
type BlockOrder struct {
	// Kind and Capacity are what the first answer said about blocks and about the volume.
	Kind     csipb.BlockMetadataType
	Capacity int64
	// End is the end of the last block.
	End int64

	// from and most are of the request: where it begins, and how many blocks an answer may have; 0 means any number.
	from int64
	most int
	// answers counts the answers, and empty those without a block; size is that of all blocks if it must be the same.
	answers, empty int
	size           int64
}

// NewBlockOrder returns a judge of the answers to a request that begins at an offset; an answer has at most so many
// blocks, and 0 means any number.
func NewBlockOrder(from int64, most int32) *BlockOrder {
	return &BlockOrder{from: from, most: int(most)}
}

// Problem returns what is wrong with the next answer, or "".
func (o *BlockOrder) Problem(a BlockAnswer) string {
	all := a.GetBlockMetadata()
	if o.answers++; o.answers == 1 {
		o.Kind, o.Capacity = a.GetBlockMetadataType(), a.GetVolumeCapacityBytes()
	}
	if len(all) == 0 {
		o.empty++
	}
	switch {
	case o.empty > mostEmpty:
		return "the stream does not end"
	case a.GetBlockMetadataType() == csipb.BlockMetadataType_UNKNOWN:
		return "block_metadata_type is UNKNOWN"
	case a.GetBlockMetadataType() != o.Kind, a.GetVolumeCapacityBytes() != o.Capacity:
		return "block_metadata_type or volume_capacity_bytes differs between two answers of a stream"
	case o.most > 0 && len(all) > o.most:
		return fmt.Sprintf("an answer has %d blocks, max_results is %d", len(all), o.most)
	}
	for _, b := range all {
		if problem := o.add(b); problem != "" {
			return problem
		}
	}
	return ""
}

// add returns what is wrong with a block, or "".
func (o *BlockOrder) add(b *csipb.BlockMetadata) string {
	from, size := b.GetByteOffset(), b.GetSizeBytes()
	switch {
	case size <= 0:
		return fmt.Sprintf("the block at %d has no bytes", from)
	case from < o.End:
		return fmt.Sprintf("a block begins at %d, and the one before it ends at %d", from, o.End)
	case o.Capacity < 0 || size > o.Capacity-from:
		return fmt.Sprintf("a block has %d bytes at %d, volume_capacity_bytes is %d", size, from, o.Capacity)
	case from+size <= o.from:
		return fmt.Sprintf("a block ends at %d, starting_offset is %d", from+size, o.from)
	case o.size != 0 && o.size != size && o.Kind == csipb.BlockMetadataType_FIXED_LENGTH:
		return fmt.Sprintf("FIXED_LENGTH blocks have %d and %d bytes", o.size, size)
	}
	o.End, o.size = from+size, size
	return ""
}
